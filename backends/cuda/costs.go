package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.06, first: 2.93, lists: 2.06, carries: 3.14, several: .0175, extra: 3.46, bandwidth: .997, exposed: .533, deep: 1.6, tail: .00131, hidden: .00311, edge: .000764, empty: 3800, plus: 2900, carry: .932, few: .768, lone: .602, width: .0673, odd: .335, narrow: .603, sector: .183, boxes: 1.7,
	tiles: []tile{
		{192, 128, 16, 1, 3570, 2170, 449, 1.55},
		{128, 128, 12, 1, 3920, 2660, 684, .866},
		{128, 128, 12, 1, 2970, 3440, 900, .863},
		{128, 112, 12, 1, 3510, 3680, 1500, .848},
		{128, 80, 12, 1, 4930, 3230, 2820, .512},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.13, bandwidth: 1.17, exposed: .455, tail: .783, hidden: .0241, edge: .00561, empty: 6360, few: .758, width: .0334, narrow: .187, sector: .0353,
	tiles: []tile{
		{128, 128, 8, 2, 1960, 5440, 3490, 0},
		{128, 64, 8, 2, 2310, 3630, 2390, 0},
		{128, 64, 8, 2, 3910, 3850, 2570, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 4.61, first: 12.3, lists: .00492, carries: .583, bandwidth: 1.05, exposed: .133, deep: .2, loose: 2.41, unused: .267, tail: .26, hidden: .0759, edge: .126, empty: 13, plus: 5920, carry: .297, few: 1.02, width: .0449, odd: .00832, sector: .0922,
	tiles: []tile{
		{128, 64, 4, 3, 5610, 3000, 2140, 1.8},
		{128, 64, 4, 3, 8010, 5110, 3240, 1.22},
		{128, 64, 4, 2, 7350, 4330, 3120, 1.44},
		{128, 64, 4, 2, 7200, 5150, 3830, 1.62},
		{128, 64, 8, 1, 6870, 4500, 4480, .419},
		{128, 64, 8, 1, 6910, 6160, 6260, .41},
	},
}

var bwdSM90Costs = costs{
	launch: 6.56, first: .012, lists: 4.53, sinks: .0798, several: 2.78, bandwidth: 1.21, exposed: .694, tail: .571, hidden: .414, edge: .204, empty: 6220, plus: 1880, width: .0675, odd: 2.64, hop: 2390, column: 11, narrow: .0304, sector: .0064, lag: .418, spread: .0462, later: 567, again: .358, meet: 9090, sum: 494, ends: 17300,
	tiles: []tile{
		{128, 128, 12, 1, 11600, 3120, 3650, 1.22},
		{64, 128, 12, 1, 12300, 2030, 3910, .566},
		{64, 128, 12, 1, 9820, 2700, 3790, 1},
		{64, 128, 12, 1, 15200, 3010, 4620, .348},
		{64, 128, 12, 1, 16300, 7270, 6580, .175},
	},
}

var bwdSM80Costs = costs{
	launch: 12.8, first: 8.42, lists: .0406, sinks: 2.14, bandwidth: 2.11, exposed: 1.54, loose: 2.86, unused: .0102, tail: .672, hidden: .0191, edge: .29, empty: 4340, plus: 4880, width: .0365, odd: .0239, hop: 1300, column: 9.97, sector: .00268, later: 5590, ends: 5000, blind: .546,
	tiles: []tile{
		{64, 128, 4, 2, 3750, 6070, 4530, 5.99},
		{64, 128, 4, 2, 14500, 1270, 6940, 4.29},
		{64, 128, 8, 1, 8940, 842, 6680, 1.46},
		{64, 128, 8, 1, 10800, 3660, 7520, 1.48},
		{64, 64, 8, 1, 7190, 2430, 7250, .537},
		{64, 64, 8, 1, 11400, 2790, 9570, .113},
	},
}

var fwdF32Costs = costs{
	launch: 5.23, first: 10.6, lists: .0755, carries: 6.12, bandwidth: .439, exposed: .0216, loose: 1.12, unused: .541, tail: .174, hidden: .335, edge: .308, empty: 2700, plus: 10200, carry: 2.55, few: 1, width: 1.22, odd: .0434, sector: .0715,
	tiles: []tile{
		{64, 64, 4, 3, 16, 10800, 4930, 1.01},
		{64, 64, 4, 3, 652, 15200, 8680, .312},
		{64, 64, 4, 2, 12900, 18100, 13300, 1.52},
		{64, 32, 4, 2, 20900, 1940, 20200, 1.06},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 17.5, first: .907, lists: 1, sinks: 2.79, bandwidth: 1.27, exposed: 1.16, loose: 2.19, unused: .092, tail: .121, hidden: .489, edge: .00789, empty: 3210, plus: 269, width: .796, odd: .0895, sector: .0294,
	tiles: []tile{
		{64, 64, 4, 3, 100, 15400, 9800, 2.14},
		{64, 64, 4, 2, 14800, 15400, 10900, .821},
		{64, 64, 4, 2, 23900, 38700, 4570, 1.3},
		{64, 64, 4, 2, 100, 120000, 1310, .596},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.51, first: 4.54, lists: .0162, carries: 1.21, extra: 2.49, cluster: .724, part: .603, bandwidth: .972, exposed: .528, deep: 1200, loose: 2.95, queries: .184, unused: .819, plus: 3800, carry: .118, row: 226, width: .244, sector: .137,
	tiles: []tile{
		{128, 16, 8, 1, 6420, 930, 1330, .709},
		{128, 16, 8, 1, 8450, 1290, 1570, .375},
		{64, 16, 4, 1, 12300, 1520, 815, .433},
	},
}

var decodeF32Costs = costs{
	launch: 4.52, first: 5.53, lists: 2.09, carries: 2.52, extra: 5, cluster: 1.65, part: .0224, bandwidth: .973, exposed: .533, deep: .295, loose: 6.04, queries: .052, unused: .609, plus: 5230, carry: .289, row: 137, half: .515, width: .000766, sector: .228,
	tiles: []tile{
		{64, 8, 8, 1, 4620, 2540, 1440, .559},
		{64, 8, 8, 1, 3910, 3400, 2290, .288},
		{64, 4, 8, 1, 5150, 3130, 2010, .31},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
