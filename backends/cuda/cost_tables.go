package cuda

import "github.com/flashkit-go/flashkit"

// costs are what the parts of a stem cost.
type costs struct {
	launch    float64 // microseconds of the launches of a call
	first     float64 // microseconds more of one with features, whose arguments and code are larger,
	lists     float64 // of one whose sequences differ,
	carries   float64 // of one that continues O,
	sinks     float64 // of a backward pass with sinks,
	several   float64 // and of one by the instance for all of them, where others are for one alone
	extra     float64 // microseconds of one more: a counter set to 0, parts put together,
	cluster   float64 // or put together in a cluster,
	part      float64 // and nanoseconds for each row of a part
	bandwidth float64 // fraction of the memory's bandwidth that is reached
	exposed   float64 // fraction of the shorter of steps and bytes that is not hidden
	deep      float64 // if not 0, how much of them one step of a block hides
	loose     float64 // cycles of a warp to copy an element where rows do not begin at multiples of 16 bytes,
	queries   float64 // decode_sm80: and fraction of them for query rows
	unused    float64 // and fraction of them for one of padding
	tail      float64 // blocks by which the last ends late when a mask makes them differ
	hidden    float64 // fraction of what a block takes before its steps that those before it hide
	edge      float64 // further steps for a step that the band or the last key cuts
	empty     float64 // cycles of a block that sees nothing

	few     float64 // forward: fraction of a step when a part of the warps alone has rows
	lone    float64 // fwd_sm90: or one of three warpgroups,
	duo     float64 // or two
	row     float64 // decode_sm80: cycles of a block for each of its query rows,
	half    float64 // and, if not 0, fraction of a step when warps have at most half of the rows that they may,
	width   float64 // fraction of what a step takes for its columns, which those of padding do not
	odd     float64 // fraction by which odd rows of biases and masks add more to a step
	hop     float64 // backward: cycles until the next block of a head may add its part of dQ,
	column  float64 // and more of them for each column of dQ,
	again   float64 // fraction of the waits of the first blocks that those of each further wave wait,
	lag     float64 // bwd_sm90: under a mask, fraction of the first waits
	spread  float64 // under a mask, fraction of a step for each doubling of what heads have beyond nearBytes
	later   float64 // and if the block has another step, which comes first
	told    float64 // bwd_sm90: and where a lane of its own ends turns, for one tile of rows
	overlap float64 // of the blocks of some heads, fraction that run beside those of the heads before
	meet    float64 // bwd_sm90: cycles until the blocks of a pair have begun together, and added up their dK and dV
	sum     float64 // until 8 columns of a part of a group are read,
	ends    float64 // and cycles of the blocks for 64 query rows of a head that come before and after
	plus    float64 // cycles of a block with features
	carry   float64 // and of one that continues O, for each element of it
	narrow  float64 // tensor maps: fraction by which rows of 16 bytes make a step longer,
	sector  float64 // and, of any kernel, those that are not multiples of 32 bytes
	boxes   float64 // fwd_sm90: what pages of 8 keys add to a step, as a multiple of what large ones do
	blind   float64 // backward: further steps for each step of blocks with rows that see no key

	tiles []tileCosts // by padded head dim
}

// tileCosts are the cycles of the blocks of an instance.
type tileCosts struct {
	begin float64 // cycles before the first step of a block and after its last
	step  float64 // cycles of a step when the multiprocessor holds all its blocks
	alone float64 // cycles of a step at least, as a block waits for its own results; 0 if less than step
	share float64 // of what features add to a step of the kernel; 0 without instances for features
}

// A featureTime is what a feature adds to the time of a step, as fractions of it: any at all, which takes
// other code, and each by itself. Products of 16 bits take less time beside them, and
// decode hides much behind its reading. Alone, a feature of Hopper's has an instance of its own.
// BenchmarkFeatures measures them.
type featureTime struct {
	feature             flashkit.Feature
	float32             float64 // both passes
	sm90, sm90Alone     float64 // forward of 16 bits
	sm80                float64
	back90, back90Alone float64 // backward of 16 bits
	back80              float64
	decode              float64
}
