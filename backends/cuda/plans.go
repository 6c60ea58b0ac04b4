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
	tail: .165, edge: .194, empty: 3590, hop: 5380, column: 15.9, lag: 1, spread: .126, later: 32.9, again: 1.07, meet: 13800, sum: 533,
	tiles: []tile{
		{128, 128, 12, 1, 6620, 3420, 5630, 1},
		{64, 128, 12, 1, 37600, 3200, 6660, 1},
		{64, 128, 12, 1, 7740, 3980, 6170, 1},
		{64, 128, 12, 1, 8540, 5220, 7180, 1},
		{64, 128, 12, 1, 26400, 7390, 9720, 1},
	},
}
