package cuda

import "github.com/flashkit-go/flashkit"

// costs are the fitted costs of a family.
type costs struct {
	launch    float64 // microseconds of a call's launches
	first     float64 // microseconds that features add, for larger arguments and code
	lists     float64 // microseconds that sequences of different lengths add
	carries   float64 // microseconds that a continued O adds
	sinks     float64 // microseconds that sinks add in a backward pass
	several   float64 // microseconds that the instance for all features adds, if single features have their own instances
	extra     float64 // microseconds of one more kernel, which zeroes a counter or merges parts
	cluster   float64 // microseconds of a merge within a cluster
	part      float64 // nanoseconds of a merge per row of a part
	bandwidth float64 // fraction of the peak memory bandwidth
	exposed   float64 // unhidden fraction of the shorter of steps and bytes
	deep      float64 // if not 0: a block hides more of the shorter time the more steps it has, at this rate
	loose     float64 // cycles of a warp to copy an element of an unaligned row;
	queries   float64 // decode_sm80: fraction of loose for query rows
	unused    float64 // fraction of loose for an element of padding
	tail      float64 // blocks per slot by which the last block ends late, under a mask
	hidden    float64 // fraction of begin that earlier blocks hide
	edge      float64 // further steps for each step that the band or the last key cuts
	empty     float64 // cycles of a block that sees nothing

	few     float64 // forward: relative time of a step if only some warps have rows;
	lone    float64 // fwd_sm90: relative time of a step if one of three warpgroups has rows
	duo     float64 // fwd_sm90: relative time of a step if two of three warpgroups have rows
	row     float64 // decode_sm80: cycles of a block per query row;
	half    float64 // if not 0, relative time of a step if warps have at most half their rows
	width   float64 // fraction of a step that padding saves
	odd     float64 // fraction by which unaligned rows raise the share of biases and masks
	hop     float64 // backward: cycles until a head's next block may add to dQ;
	column  float64 // backward: cycles added to hop per column of dQ
	again   float64 // fraction of the first blocks' waits in each further wave
	lag     float64 // bwd_sm90: fraction of the first waits under a mask
	spread  float64 // fraction of a step per doubling of bytes beyond nearBytes, under a mask
	later   float64 // backward: cycles added to hop if a block has several steps
	told    float64 // bwd_sm90: cycles added to hop if heads have one row tile
	overlap float64 // fraction of blocks that run at the same time as blocks of earlier heads
	meet    float64 // bwd_sm90: cycles in which a pair of blocks begins, and sums dK and dV
	sum     float64 // bwd_sm90: cycles to load 8 columns of a group's part
	ends    float64 // backward: cycles of the first and last kernels, for 64 query rows of a head
	plus    float64 // cycles of a block with features;
	carry   float64 // cycles of a block per element of a continued O
	narrow  float64 // tensor maps: fraction by which rows of 16 bytes lengthen a step;
	sector  float64 // fraction by which rows that are not multiples of 32 bytes lengthen a step
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
