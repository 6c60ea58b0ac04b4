package cuda

// These costs decide how fwd_sm90 and bwd_sm90 partition calls with few tiles. fwd_sm90 may cut the
// keys into parts, and bwd_sm90 may cut groups of query heads. A partition fixes the order of sums.
// To keep the bits of results, these costs stay the same when the costs in costs.go are fitted
// anew. TestLaunchesOfRandomCalls fails if a change of the shared formulas moves a partition.

var fwdSM90Plans = costs{
	hidden: .5,
	tiles: []tileCosts{
		{begin: 3750, step: 2900},
		{begin: 3750, step: 3050},
		{begin: 3750, step: 2980},
		{begin: 3590, step: 2710},
		{begin: 2780, step: 3480},
		{begin: 3530, step: 3980},
		{begin: 4050, step: 3880},
	},
}

var bwdSM90Plans = costs{
	tail: .411, edge: .0774, empty: 3590, hop: 4350, column: 9.43, overlap: .4, later: 34.1,
	tiles: []tileCosts{
		{begin: 5700, step: 6010},
		{begin: 35500, step: 6460},
		{begin: 46400, step: 9000},
		{begin: 27200, step: 8890},
		{begin: 26100, step: 10900},
	},
}

// loneOfTwo is the relative time of a step of fwd_sm90 in which one of two warpgroups has rows.
const loneOfTwo = .713

// Constants of bwd_sm90 that costs and partitions share.
const (
	meetCycles  = 10600 // cycles that a pair of blocks takes to start together, and to add up dK and dV
	sumCycles   = 480   // cycles to load 8 columns of dK or dV of one part of a group
	laterWaits  = .877  // in each further wave: the blocks' waits to add to dQ, relative to the waits of the first wave
	maskedWaits = 2.05  // under a mask: factor by which the first wave's waits to add to dQ grow
	farther     = .0853 // under a mask: fraction added to a step for each doubling of the concurrent heads' bytes beyond nearBytes
)
