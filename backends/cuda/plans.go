package cuda

// By these fwd_sm90 and bwd_sm90 cut calls with few tiles: keys in parts, and groups of query heads. How a call is cut says in
// which order it sums, so they stay when costs are fitted anew.

var fwdSM90Plans = costs{
	tail: .0453, edge: .0143, empty: 1150, few: .713, lone: .713,
	tiles: []tile{
		{192, 128, 16, 1, 3750, 2010, 449, 1},
		{128, 128, 12, 1, 3590, 2710, 684, 1},
		{128, 128, 12, 1, 2780, 3480, 900, 1},
		{128, 112, 12, 1, 3530, 3980, 1500, 1},
		{128, 80, 12, 1, 4050, 3880, 2820, 1},
	},
}

var bwdSM90Plans = costs{
	tail: .165, edge: .177, empty: 3590, hop: 6230, column: 12.7, spread: .228, later: 32.9, again: 1.04, meet: 14200, sum: 410,
	tiles: []tile{
		{128, 128, 12, 1, 6860, 3420, 5690, 1},
		{64, 128, 12, 1, 36100, 3200, 6840, 1},
		{64, 128, 12, 1, 7200, 3980, 5950, 1},
		{64, 128, 12, 1, 7150, 5220, 7450, 1},
		{64, 128, 12, 1, 19500, 7390, 10900, 1},
	},
}
