package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.06, first: 2.36, lists: 2.02, carries: 3.59, several: .0178, extra: 3.72, bandwidth: .997, exposed: .553, deep: 1.65, tail: .00158, edge: .00234, empty: 3430, plus: 2950, carry: .967, few: .768, lone: .602, width: .0775, odd: .15, narrow: .694, sector: .18, boxes: 1.43,
	tiles: []tile{
		{192, 128, 16, 1, 3570, 2170, 449, 1.55},
		{128, 128, 12, 1, 3920, 2660, 684, .79},
		{128, 128, 12, 1, 2920, 3500, 900, .863},
		{128, 112, 12, 1, 3570, 3680, 1500, .832},
		{128, 80, 12, 1, 4930, 3230, 2820, .429},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.13, bandwidth: 1.19, exposed: .481, tail: .783, edge: .00332, empty: 6060, few: .758, width: .0261, narrow: .204, sector: .0319,
	tiles: []tile{
		{128, 128, 8, 2, 1920, 5440, 3490, 0},
		{128, 64, 8, 2, 2270, 3630, 2390, 0},
		{128, 64, 8, 2, 3840, 3850, 2570, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 4.61, first: 12.5, lists: .00492, carries: .517, bandwidth: 1.14, exposed: .14, deep: .249, loose: 2.46, unused: .193, tail: .265, edge: .211, empty: 15, plus: 5700, carry: .444, few: 1.02, width: .0275, odd: .00755, sector: .0395,
	tiles: []tile{
		{128, 64, 4, 3, 5310, 3000, 2180, 1.8},
		{128, 64, 4, 3, 8010, 5110, 3120, 1.14},
		{128, 64, 4, 2, 6950, 4330, 3180, 1.36},
		{128, 64, 4, 2, 6940, 5150, 3970, 1.38},
		{128, 64, 8, 1, 6740, 4420, 4480, .328},
		{128, 64, 8, 1, 6780, 6360, 6260, .508},
	},
}

var bwdSM90Costs = costs{
	launch: 9.28, first: .0128, lists: 2.23, sinks: .0798, several: 7.89, bandwidth: 1.43, exposed: .902, tail: .224, edge: .316, empty: 5540, plus: 248, width: .00757, odd: 1.05, hop: 2270, column: 9.95, narrow: .0406, sector: .0341, later: 54.4, meet: 15000, ends: 17600,
	tiles: []tile{
		{128, 128, 12, 1, 8880, 3980, 3720, 1.36},
		{64, 128, 12, 1, 7620, 2030, 3220, .917},
		{64, 128, 12, 1, 7300, 2700, 3850, 1},
		{64, 128, 12, 1, 9940, 3010, 3560, .348},
		{64, 128, 12, 1, 10300, 5490, 6580, .338},
	},
}

var bwdSM80Costs = costs{
	launch: 12.8, first: 11, lists: .0363, sinks: 2.58, bandwidth: 1.93, exposed: 1.54, loose: 2.96, unused: .0161, tail: .613, edge: .27, empty: 4340, plus: 3040, width: .172, odd: .0907, hop: 1680, column: 7.41, sector: .00659, later: 5800, ends: 4870, blind: .514,
	tiles: []tile{
		{64, 128, 4, 2, 4000, 5740, 4530, 5.99},
		{64, 128, 4, 2, 11900, 1310, 6680, 3.55},
		{64, 128, 8, 1, 8300, 842, 6810, 1.29},
		{64, 128, 8, 1, 9900, 3240, 7660, 1.4},
		{64, 64, 8, 1, 7630, 2300, 7390, .566},
		{64, 64, 8, 1, 11000, 2600, 9750, .16},
	},
}

var fwdF32Costs = costs{
	launch: 5.95, first: 11.2, lists: .0862, carries: 5.32, bandwidth: .439, exposed: .0107, loose: 1.32, unused: .706, tail: .191, edge: .308, empty: 2510, plus: 9140, carry: 2.6, few: 1, width: 1.31, odd: .0317, sector: .025,
	tiles: []tile{
		{64, 64, 4, 3, 15.6, 10800, 4580, .954},
		{64, 64, 4, 3, 214, 14900, 8060, .342},
		{64, 64, 4, 2, 11100, 17400, 13500, 1.44},
		{64, 32, 4, 2, 18700, 1940, 20200, 1.1},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 20.3, first: .923, lists: 1, sinks: 2.84, bandwidth: 1.54, exposed: 1.12, loose: 2.19, unused: .092, tail: .128, edge: .00521, empty: 3880, plus: 269, width: .796, odd: .0912, sector: .0289,
	tiles: []tile{
		{64, 64, 4, 3, 100, 15400, 9450, 2.06},
		{64, 64, 4, 2, 11900, 14800, 10900, .806},
		{64, 64, 4, 2, 19600, 38700, 4570, 1.21},
		{64, 64, 4, 2, 100, 120000, 1310, .571},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.51, first: 4.46, lists: .019, carries: 1.42, extra: 2.44, cluster: .737, part: .614, bandwidth: .972, exposed: .538, deep: 1220, loose: 2.95, queries: .313, unused: .762, plus: 3600, carry: .106, row: 222, width: .252, sector: .142,
	tiles: []tile{
		{128, 16, 8, 1, 6420, 930, 1330, .639},
		{128, 16, 8, 1, 8450, 1290, 1570, .308},
		{64, 16, 4, 1, 12300, 1520, 815, .339},
	},
}

var decodeF32Costs = costs{
	launch: 4.36, first: 5.95, lists: 1.98, carries: 2.52, extra: 5.09, cluster: 1.65, part: .0212, bandwidth: .973, exposed: .543, deep: .348, loose: 6.04, queries: .132, unused: .679, plus: 5230, carry: .284, row: 142, half: .515, width: .000858, sector: .165,
	tiles: []tile{
		{64, 8, 8, 1, 4970, 2540, 1440, .539},
		{64, 8, 8, 1, 4360, 3400, 2250, .268},
		{64, 4, 8, 1, 5150, 3130, 2080, .293},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
