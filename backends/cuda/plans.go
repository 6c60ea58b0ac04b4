package cuda

// By these fwd_sm90 and bwd_sm90 cut calls with few tiles: keys in parts, and groups of query heads. How a call is cut says in
// which order it sums, so they stay when costs are fitted anew.

var fwdSM90Plans = costs{
	tail: .0453, hidden: .5, edge: .0143, empty: 1150, few: .713, lone: .524,
	tiles: []tile{
		{192, 128, 16, 1, 3750, 2900, 449, 1},
		{192, 112, 16, 1, 3750, 3050, 449, 1},
		{192, 96, 16, 1, 3750, 2980, 449, 1},
		{128, 128, 12, 1, 3590, 2710, 684, 1},
		{128, 128, 12, 1, 2780, 3480, 900, 1},
		{128, 112, 12, 1, 3530, 3980, 1500, 1},
		{128, 80, 12, 1, 4050, 3880, 2820, 1},
	},
}

var bwdSM90Plans = costs{
	tail: .411, edge: .0774, empty: 3590, hop: 4350, column: 9.43, lag: 2.05, spread: .0853, overlap: .4, later: 34.1, again: .877, meet: 10600, sum: 480,
	tiles: []tile{
		{128, 128, 12, 1, 5700, 3700, 6010, 1},
		{64, 128, 12, 1, 35500, 3700, 6460, 1},
		{64, 128, 12, 1, 46400, 6000, 9000, 1},
		{64, 128, 12, 1, 27200, 5200, 8890, 1},
		{64, 128, 12, 1, 26100, 6500, 10900, 1},
	},
}
