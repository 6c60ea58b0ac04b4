package cuda

import "github.com/flashkit-go/flashkit"

// costs are the fitted costs of a family. A fitted fraction may exceed 1, because it also covers
// costs that the model leaves out.
type costs struct {
	launch    float64 // microseconds of a call's launches
	first     float64 // microseconds that features add, for larger arguments and code
	extra     float64 // microseconds of one more kernel, which zeroes a counter or merges parts
	cluster   float64 // microseconds of a merge within a cluster
	bandwidth float64 // fraction of the peak memory bandwidth
	exposed   float64 // of the times for steps and for memory traffic, the fraction of the shorter one that is not hidden
	deep      float64 // if not 0, blocks with few steps hide less time: 1/(steps*deep) of the hidden fraction is exposed too
	loose     float64 // cycles of a warp to copy an element of an unaligned row
	unused    float64 // cycles to fill in an element of padding, relative to loose
	tail      float64 // under a mask: waves added because the last blocks end late
	hidden    float64 // fraction of tileCosts.begin that earlier blocks hide
	edge      float64 // extra cost of a tile that the band or the last key cuts, in steps
	empty     float64 // cycles of a block without work

	few     float64 // forward: relative time of a step if only some warps have rows
	row     float64 // decode_sm80: cycles of a block per query row
	hop     float64 // backward: cycles until a head's next block may add to dQ
	column  float64 // backward: cycles added to hop per column of dQ
	later   float64 // backward: cycles added to hop if a block has several steps
	overlap float64 // backward: fraction of the concurrent blocks that belong to the next heads before the present heads end
	ends    float64 // backward: cycles of the first and last kernels together, per 64 query rows of a head
	plus    float64 // cycles that features add to a block, per 128 columns of the padded head dim

	tiles []tileCosts // by padded head dim
}

// tileCosts are the cycles of the blocks of an instance.
type tileCosts struct {
	begin float64 // cycles before the first step of a block and after its last
	step  float64 // cycles of a step if the multiprocessor runs its maximum number of blocks
	alone float64 // minimum cycles of a step, even of the only block on a multiprocessor, because a step waits for its own results; 0 if below step
}

// A featureTime is the cost of a feature, as fractions of a step's time. Any call with features
// also pays the entry of AllFeatures once, because kernels with features run other code.
// Tensor-core products hide some of a feature's cost, and the loads of decode_sm80 hide much of it.
// On Hopper, instances for single features cost sm90Alone and back90Alone instead.
// BenchmarkFeatures measures all fractions.
type featureTime struct {
	feature             flashkit.Feature
	float32             float64 // both passes
	sm90, sm90Alone     float64 // forward of 16 bits
	sm80                float64
	back90, back90Alone float64 // backward of 16 bits
	back80              float64
	decode              float64
}
