package cuda

import "github.com/flashkit-go/flashkit"

// costs are the fitted costs of a family.
type costs struct {
	launch    float64 // microseconds of a call's launches
	first     float64 // microseconds that features add, for larger arguments and code
	lists     float64 // microseconds added to a call whose sequences may differ in length
	carries   float64 // microseconds that a continued O adds
	sinks     float64 // microseconds that sinks add in a backward pass
	several   float64 // families with instances for single features: microseconds that the instance for all features adds
	extra     float64 // microseconds of one more kernel, which zeroes a counter or merges parts
	cluster   float64 // microseconds of a merge within a cluster
	part      float64 // nanoseconds of a merge outside a cluster, per query row and part
	bandwidth float64 // fraction of the peak memory bandwidth
	exposed   float64 // fraction of the shorter of the times for steps and for memory that is not hidden
	deep      float64 // if not 0, blocks with few steps hide less time: 1/(steps*deep) of the hidden fraction is exposed too
	loose     float64 // cycles of a warp to copy an element of an unaligned row
	queries   float64 // decode_sm80: cycles to copy an element of a query row, relative to loose
	unused    float64 // cycles to fill in an element of padding, relative to loose
	tail      float64 // under a mask: waves added because the last blocks end late
	hidden    float64 // fraction of tileCosts.begin that earlier blocks hide
	edge      float64 // extra cost of a tile that the band or the last key cuts, in steps
	empty     float64 // cycles of a block without work

	few     float64 // forward: relative time of a step if only some warps have rows
	lone    float64 // fwd_sm90: relative time of a step if one of three warpgroups has rows
	duo     float64 // fwd_sm90: relative time of a step if two of three warpgroups have rows
	row     float64 // decode_sm80: cycles of a block per query row
	half    float64 // if not 0, relative time of a step in which warps have at most half of their rows
	width   float64 // a step gets shorter by this fraction times the fraction of unused columns
	odd     float64 // fraction by which unaligned rows raise the cost of a bias or mask
	hop     float64 // backward: cycles until a head's next block may add to dQ
	column  float64 // backward: cycles added to hop per column of dQ
	again   float64 // backward: waits of the blocks of each further wave to add to dQ, relative to the first wave
	lag     float64 // bwd_sm90, under a mask: factor of the first wave's waits to add to dQ
	spread  float64 // under a mask: fraction added to a step for each doubling of the concurrent heads' bytes beyond nearBytes
	later   float64 // backward: cycles added to hop if a block has several steps
	told    float64 // bwd_sm90: cycles added to hop if heads have one row tile
	overlap float64 // backward: fraction of the places for blocks in which blocks of the next heads run before the present heads end
	meet    float64 // bwd_sm90: cycles in which a pair of blocks starts together and adds its dK and dV
	sum     float64 // bwd_sm90: cycles to load 8 columns of a group's part
	ends    float64 // backward: cycles of the first and last kernels together, per 64 query rows of a head
	plus    float64 // cycles that features add to a block, per 128 columns of the padded head dim
	carry   float64 // cycles of a block per element of a continued O
	narrow  float64 // families with tensor maps: fraction by which rows of at most 16 bytes lengthen a step
	sector  float64 // fraction by which rows that are not multiples of 32 bytes lengthen a step
	boxes   float64 // fwd_sm90: fraction by which pages of 8 keys raise the cost of pages
	blind   float64 // backward: fraction of the longest block's steps by which a call gets longer if row 0 sees no key

	tiles []tileCosts // by padded head dim
}

// tileCosts are the cycles of the blocks of an instance.
type tileCosts struct {
	begin float64 // cycles before the first step of a block and after its last
	step  float64 // cycles of a step if the multiprocessor holds all its blocks
	alone float64 // minimum cycles of a step, even if the block runs alone, because it waits for its own results; 0 if below step
	share float64 // factor of the features' cost in a step; 0 without instances for features
}

// A featureTime is the cost of a feature, as fractions of a step's time. Any call with features
// also pays the entry of AllFeatures once, because its kernels run other code. Tensor-core products
// hide some of a feature's cost, and the loads of decode_sm80 hide much of it. On Hopper, instances
// for single features cost sm90Alone and back90Alone instead. BenchmarkFeatures measures all
// fractions.
type featureTime struct {
	feature             flashkit.Feature
	float32             float64 // both passes
	sm90, sm90Alone     float64 // forward of 16 bits
	sm80                float64
	back90, back90Alone float64 // backward of 16 bits
	back80              float64
	decode              float64
}
