package cuda

import "github.com/flashkit-go/flashkit"

// costs are the fitted costs of a family.
type costs struct {
	launch    float64 // microseconds of the launches of a call
	first     float64 // further microseconds of a call with features, whose arguments and code are larger;
	lists     float64 // with sequences of different lengths;
	carries   float64 // with a continued O;
	sinks     float64 // of a backward pass with sinks;
	several   float64 // by the instance for all features, if there are instances for single ones
	extra     float64 // microseconds of one more kernel: zeroing a counter, or merging parts;
	cluster   float64 // or of a merge within a cluster;
	part      float64 // and nanoseconds per row of a part
	bandwidth float64 // fraction of the peak memory bandwidth
	exposed   float64 // fraction of the shorter of steps and bytes that is not hidden
	deep      float64 // if not 0, how much of it one step of a block hides
	loose     float64 // cycles of a warp to copy an element of an unaligned row (not a multiple of 16 bytes);
	queries   float64 // decode_sm80: fraction of it for query rows;
	unused    float64 // fraction of it for an element of padding
	tail      float64 // blocks by which the last ends late if a mask makes blocks differ
	hidden    float64 // fraction of a block's begin that earlier blocks hide
	edge      float64 // further steps for a step that the band or the last key cuts
	empty     float64 // cycles of a block that sees nothing

	few     float64 // forward: relative cost of a step in which only some warps have rows
	lone    float64 // fwd_sm90: the same with one of three warpgroups,
	duo     float64 // or with two
	row     float64 // decode_sm80: cycles of a block per query row;
	half    float64 // if not 0, relative cost of a step whose warps have at most half of their rows
	width   float64 // fraction of a step that depends on its columns, and is saved for padding
	odd     float64 // fraction by which unaligned rows of biases and masks raise their share of a step
	hop     float64 // backward: cycles until the next block of a head may add to dQ;
	column  float64 // further cycles per column of dQ
	again   float64 // fraction of the first blocks' waits that blocks of each further wave wait
	lag     float64 // bwd_sm90: fraction of the first waits under a mask
	spread  float64 // under a mask, fraction of a step per doubling of the heads' bytes beyond nearBytes
	later   float64 // cycles added to hop if the block has another step, which comes first
	told    float64 // bwd_sm90: cycles added to hop for one tile of rows, where a separate lane ends turns
	overlap float64 // fraction of the blocks of some heads that run at the same time as blocks of earlier heads
	meet    float64 // bwd_sm90: cycles until the blocks of a pair have begun together, and summed dK and dV;
	sum     float64 // until 8 columns of a part of a group are loaded;
	ends    float64 // of the blocks of the first and last kernels for 64 query rows of a head
	plus    float64 // cycles of a block with features;
	carry   float64 // and per element of a continued O
	narrow  float64 // tensor maps: fraction by which rows of 16 bytes lengthen a step;
	sector  float64 // any kernel: the same for rows that are not multiples of 32 bytes
	boxes   float64 // fwd_sm90: cost of pages of 8 keys, as a multiple of the cost of large pages
	blind   float64 // backward: further steps per step of blocks with rows that see no key

	tiles []tileCosts // by padded head dim
}

// tileCosts are the cycles of the blocks of an instance.
type tileCosts struct {
	begin float64 // cycles before the first step of a block and after its last
	step  float64 // cycles of a step if the multiprocessor holds all its blocks
	alone float64 // minimum cycles of a step, as a block waits for its own results; 0 if below step
	share float64 // fraction of the features' cost of a step that applies; 0 without such instances
}

// A featureTime is the cost of a feature as fractions of the time of a step. AllFeatures stands for
// any feature at all, which runs other code. Products of 16 bits hide some of it, and decode hides
// much of it behind its loads. Alone, a feature on Hopper has an instance of its own.
// BenchmarkFeatures measures these times.
type featureTime struct {
	feature             flashkit.Feature
	float32             float64 // both passes
	sm90, sm90Alone     float64 // forward of 16 bits
	sm80                float64
	back90, back90Alone float64 // backward of 16 bits
	back80              float64
	decode              float64
}
