package cuda

import "github.com/flashkit-go/flashkit"

// costs are the fitted costs of a family.
type costs struct {
	launch    float64 // microseconds of a call's launches
	first     float64 // microseconds added by features, for larger arguments and code;
	lists     float64 // by sequences of different lengths;
	carries   float64 // by a continued O;
	sinks     float64 // by sinks in a backward pass;
	several   float64 // by the instance for all features, if single ones have their own
	extra     float64 // microseconds of one more kernel, to zero a counter or merge parts;
	cluster   float64 // or of a merge within a cluster;
	part      float64 // and nanoseconds per row of a part
	bandwidth float64 // fraction of the peak memory bandwidth
	exposed   float64 // unhidden fraction of the shorter of steps and bytes
	deep      float64 // if not 0, how much of it a step hides
	loose     float64 // cycles of a warp to copy an element of an unaligned row;
	queries   float64 // decode_sm80: fraction of it for query rows;
	unused    float64 // for an element of padding
	tail      float64 // blocks by which the last ends late, under a mask
	hidden    float64 // fraction of begin that earlier blocks hide
	edge      float64 // further steps for one that the band or the last key cuts
	empty     float64 // cycles of a block that sees nothing

	few     float64 // forward: relative time of a step if only some warps have rows;
	lone    float64 // fwd_sm90: with one of three warpgroups,
	duo     float64 // or with two
	row     float64 // decode_sm80: cycles of a block per query row;
	half    float64 // if not 0, relative time of a step if warps have at most half their rows
	width   float64 // fraction of a step that padding saves
	odd     float64 // fraction by which unaligned rows raise the share of biases and masks
	hop     float64 // backward: cycles until a head's next block may add to dQ;
	column  float64 // further cycles per column of dQ
	again   float64 // fraction of the first blocks' waits in each further wave
	lag     float64 // bwd_sm90: fraction of the first waits under a mask
	spread  float64 // fraction of a step per doubling of bytes beyond nearBytes, under a mask
	later   float64 // cycles added to hop if the block has another step, which is first
	told    float64 // bwd_sm90: the same for one tile of rows, where a separate lane ends turns
	overlap float64 // fraction of blocks that run at the same time as blocks of earlier heads
	meet    float64 // bwd_sm90: cycles until a pair has begun, and summed dK and dV;
	sum     float64 // until 8 columns of a group's part are loaded;
	ends    float64 // of the first and last kernels, for 64 query rows of a head
	plus    float64 // cycles of a block with features;
	carry   float64 // and per element of a continued O
	narrow  float64 // tensor maps: fraction by which rows of 16 bytes lengthen a step;
	sector  float64 // any kernel: for rows that are not multiples of 32 bytes
	boxes   float64 // fwd_sm90: cost of pages of 8 keys, relative to large pages
	blind   float64 // backward: further steps per step of blocks whose rows see no key

	tiles []tileCosts // by padded head dim
}

// tileCosts are the cycles of the blocks of an instance.
type tileCosts struct {
	begin float64 // cycles before the first step of a block and after its last
	step  float64 // cycles of a step if the multiprocessor holds all its blocks
	alone float64 // minimum cycles of a step, which waits for its own results; 0 if below step
	share float64 // factor of the features' cost of a step; 0 without instances for features
}

// A featureTime is the cost of a feature as fractions of a step's time. AllFeatures stands for any
// feature, which runs other code. Products of 16 bits hide some of it, and decode's loads hide much
// of it. Alone, a feature on Hopper has its own instance. BenchmarkFeatures measures these times.
type featureTime struct {
	feature             flashkit.Feature
	float32             float64 // both passes
	sm90, sm90Alone     float64 // forward of 16 bits
	sm80                float64
	back90, back90Alone float64 // backward of 16 bits
	back80              float64
	decode              float64
}
