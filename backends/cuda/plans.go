package cuda

// Costs that decide how fwd_sm90 and bwd_sm90 partition calls with few tiles: keys into parts, and
// groups of query heads into parts. A partition fixes the order of sums. To keep the bits of
// results, these costs stay the same when the costs in costs.go are fitted anew.
// TestLaunchesOfRandomCalls fails if a change of the shared formulas moves a partition.

var fwdSM90Plans = costs{
	hidden: .5, few: .713, lone: .524,
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
	tail: .411, edge: .0774, empty: 3590, hop: 4350, column: 9.43, lag: 2.05, spread: .0853, overlap: .4, later: 34.1, again: .877, meet: 10600, sum: 480,
	tiles: []tileCosts{
		{begin: 5700, step: 6010},
		{begin: 35500, step: 6460},
		{begin: 46400, step: 9000},
		{begin: 27200, step: 8890},
		{begin: 26100, step: 10900},
	},
}
