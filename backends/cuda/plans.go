package cuda

// By these fwd_sm90 and bwd_sm90 cut calls with few tiles: keys in parts, and groups of query heads. How a call is cut says in
// which order it sums, so they stay when costs are fitted anew.

var fwdSM90Plans = costs{
	tail: .0453, edge: .0143, empty: 1150, few: .713, lone: .524,
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
	tail: .171, edge: .249, empty: 3590, hop: 2270, later: 32.9, blind: 2.57,
	tiles: []tile{
		{128, 128, 12, 1, 7990, 3420, 4740, 1},
		{64, 128, 12, 1, 8130, 3200, 4390, 1},
		{64, 128, 12, 1, 7470, 3980, 3900, 1},
		{64, 128, 12, 1, 6130, 5220, 4400, 1},
		{64, 128, 12, 1, 12600, 7390, 7530, 1},
	},
}
