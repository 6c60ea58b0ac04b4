package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 5.95, first: 4.66, lists: .725, carries: 5.91, several: 2.14, extra: 3.22, bandwidth: .974, exposed: .508, deep: 1.17, tail: .000956, hidden: .00241, edge: .000183, empty: 10100, plus: 2610, carry: .291, few: .768, lone: .638, duo: .73, width: .0523, odd: .00233, narrow: .256, sector: .153, boxes: 4.05,
	tiles: []tile{
		{192, 128, 16, 1, 4730, 2230, 449, 1.06},
		{192, 112, 16, 1, 3990, 2760, 449, 1.61},
		{192, 96, 16, 1, 3820, 2090, 449, 1.61},
		{128, 128, 12, 1, 4070, 2560, 684, 1.02},
		{128, 128, 12, 1, 2110, 4320, 900, .631},
		{128, 112, 12, 1, 3540, 3420, 1500, .545},
		{128, 80, 12, 1, 4750, 3350, 2820, .503},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 3.91, bandwidth: .889, exposed: .344, tail: .604, hidden: .00389, edge: .00452, empty: 3050, few: .759, width: .175, narrow: .453, sector: .0843,
	tiles: []tile{
		{128, 128, 8, 2, 3010, 4780, 3430, 0},
		{128, 64, 8, 2, 3710, 3370, 2150, 0},
		{128, 64, 8, 2, 3870, 3990, 2520, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 4.61, first: 14.2, lists: .0152, carries: .71, bandwidth: 1, exposed: .121, deep: .232, loose: 2.5, unused: .289, tail: .26, hidden: .0159, edge: .0526, empty: 7.12, plus: 3650, carry: .927, few: 1.08, width: .00521, odd: .285, sector: .0617,
	tiles: []tile{
		{128, 64, 4, 3, 5820, 3370, 1920, 1.67},
		{128, 64, 4, 3, 8320, 4660, 2870, 1.51},
		{128, 64, 4, 2, 8920, 3900, 2660, 1.61},
		{128, 64, 4, 2, 10200, 5150, 3330, 1.65},
		{128, 64, 8, 1, 5890, 4490, 4560, .568},
		{128, 64, 8, 1, 6770, 6160, 6310, .347},
	},
}

var bwdSM90Costs = costs{
	launch: 7.83, first: .0195, lists: 5.47, sinks: .0704, several: 9.71, bandwidth: 1.17, exposed: .707, tail: .357, hidden: .326, edge: .0434, empty: 4910, plus: 2650, width: .14, odd: 1.03, hop: 1510, column: 9.26, narrow: .0192, sector: .00239, lag: .435, spread: .0134, later: 889, again: .00444, told: 898, overlap: .204, meet: 6990, sum: 422, ends: 12100,
	tiles: []tile{
		{128, 128, 12, 1, 9230, 3090, 3860, 1.28},
		{64, 128, 12, 1, 8690, 2030, 3910, .477},
		{64, 128, 12, 1, 14800, 5460, 3860, 1},
		{64, 128, 12, 1, 17200, 3010, 4900, .348},
		{64, 128, 12, 1, 18300, 7480, 7380, .303},
	},
}

var bwdSM80Costs = costs{
	launch: 12.5, first: 12.4, lists: .0533, sinks: 3.06, bandwidth: 2.27, exposed: 1.54, loose: 2.72, unused: .00362, tail: .804, hidden: .00248, edge: .214, empty: 3810, plus: 27, width: .0539, odd: .149, hop: 1200, column: 12.7, sector: .0194, later: 5580, overlap: .141, ends: 6320, blind: .0179,
	tiles: []tile{
		{64, 128, 4, 2, 3390, 6540, 5440, 4.02},
		{64, 128, 4, 2, 13200, 1120, 8670, 3.19},
		{64, 128, 8, 1, 12400, 858, 6690, 1.28},
		{64, 128, 8, 1, 12800, 7460, 7570, 1.37},
		{64, 64, 8, 1, 6630, 868, 7660, .532},
		{64, 64, 8, 1, 9760, 3720, 9930, .608},
	},
}

var fwdF32Costs = costs{
	launch: 5.2, first: 9.64, lists: 1.91, carries: 3.11, bandwidth: .568, exposed: .322, loose: 1.08, unused: .159, tail: .246, hidden: .277, edge: .184, empty: 4110, plus: 11500, carry: 3.3, few: 1, width: 1.18, odd: .0248, sector: .0687,
	tiles: []tile{
		{64, 64, 4, 3, 20.7, 10500, 5500, .743},
		{64, 64, 4, 3, 1320, 13700, 8380, .772},
		{64, 64, 4, 2, 14300, 17200, 14000, 1.17},
		{64, 32, 4, 2, 20400, 1940, 19800, .943},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 21.3, first: 1.17, lists: 1.47, sinks: 3.38, bandwidth: .958, exposed: 1.3, loose: 2.41, unused: .0903, tail: .12, hidden: 1, edge: .0114, empty: 654, plus: 333, width: 1, odd: .0814, sector: .11,
	tiles: []tile{
		{64, 64, 4, 3, 100, 17800, 8070, 1.71},
		{64, 64, 4, 2, 10000, 17200, 11600, .569},
		{64, 64, 4, 2, 19700, 38000, 4570, 1.17},
		{64, 64, 4, 2, 80.4, 120000, 1310, .623},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.64, first: 4.63, lists: .0104, carries: 3.71, extra: 2.6, cluster: .425, part: 1.9, bandwidth: .99, exposed: .549, deep: 1420, loose: 2.84, queries: .162, unused: .865, plus: 3280, carry: .0607, row: 266, width: .22, sector: .198,
	tiles: []tile{
		{128, 16, 8, 1, 5760, 896, 1340, .576},
		{128, 16, 8, 1, 7720, 1000, 1540, .495},
		{64, 16, 4, 1, 12000, 1310, 815, .631},
	},
}

var decodeF32Costs = costs{
	launch: 2.46, first: 7.82, lists: .116, carries: 3.95, extra: 7.39, cluster: 2.85, part: .0319, bandwidth: 3.6, exposed: 1.76, deep: .484, loose: 5, queries: .0199, unused: .725, plus: 4300, carry: .28, row: 82.1, half: .52, width: .000548, sector: .305,
	tiles: []tile{
		{64, 8, 8, 1, 6810, 3060, 2040, .256},
		{64, 8, 8, 1, 6130, 4620, 3210, .175},
		{64, 4, 8, 1, 8880, 4130, 2950, .126},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
