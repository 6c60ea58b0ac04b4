package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.06, first: 2.83, lists: 2.17, carries: 6.21, several: .0175, extra: 3.64, bandwidth: .997, exposed: .553, deep: 1.78, tail: .00208, edge: .033, empty: 3140, plus: 3240, carry: 1.19, few: .74, lone: .613, width: .0685, narrow: .54,
	tiles: []tile{
		{192, 128, 16, 1, 3320, 2290, 449, 1.61},
		{192, 112, 16, 1, 6500, 2400, 449, 1.61},
		{192, 96, 16, 1, 6500, 2350, 449, 1.61},
		{128, 128, 12, 1, 3640, 2660, 684, 1.14},
		{128, 128, 12, 1, 2630, 4020, 900, .863},
		{128, 112, 12, 1, 3500, 3680, 1500, .929},
		{128, 80, 12, 1, 3750, 3670, 2820, .544},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.13, bandwidth: 1.15, exposed: .481, tail: .553, edge: .00289, empty: 8640, few: .786, width: .0218, narrow: .278,
	tiles: []tile{
		{128, 128, 8, 2, 1820, 5150, 3490, 0},
		{128, 64, 8, 2, 2180, 3630, 2300, 0},
		{128, 64, 8, 2, 3630, 3990, 2480, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 5.63, first: 11.9, lists: .00492, carries: .442, bandwidth: 1.15, exposed: .166, deep: .249, loose: 2.51, unused: .297, tail: .277, edge: .197, empty: 14.1, plus: 6700, carry: .187, few: .986, width: .108, odd: .0151,
	tiles: []tile{
		{128, 64, 4, 3, 3980, 3340, 2260, 1.8},
		{128, 64, 4, 3, 6440, 5290, 3290, 1.07},
		{128, 64, 4, 2, 5890, 4490, 3040, 1.42},
		{128, 64, 4, 2, 5890, 5250, 3690, 1.45},
		{128, 64, 8, 1, 5440, 4650, 4710, .236},
		{128, 64, 8, 1, 6160, 6590, 6490, .427},
	},
}

var bwdSM90Costs = costs{
	launch: 8.95, first: .013, lists: 6.7, sinks: .0798, several: 7.67, bandwidth: 1.14, exposed: .838, tail: .364, edge: .472, empty: 4480, plus: 2330, width: .0136, hop: 2110, column: .0908, narrow: .0406, later: 237, blind: 5.1,
	tiles: []tile{
		{128, 128, 12, 1, 11200, 3630, 3720, 1.55},
		{64, 128, 12, 1, 9620, 2030, 3930, .688},
		{64, 128, 12, 1, 6220, 2700, 3850, 1},
		{64, 128, 12, 1, 11400, 3010, 4240, .348},
		{64, 128, 12, 1, 12200, 5490, 6950, .149},
	},
}

var bwdSM80Costs = costs{
	launch: 12.7, first: 10.1, lists: .0356, sinks: 5.86, bandwidth: 1.41, exposed: 1.41, loose: 2.92, unused: .0162, tail: .783, edge: .198, empty: 654, plus: 1640, width: .00583, odd: .247, hop: 1540, column: 11.5, later: 6800, blind: .837,
	tiles: []tile{
		{64, 128, 4, 2, 6040, 5960, 5240, 4.84},
		{64, 128, 4, 2, 13300, 1360, 6940, 3.23},
		{64, 128, 8, 1, 9270, 842, 6580, 1.12},
		{64, 128, 8, 1, 12400, 7750, 7660, 1.31},
		{64, 64, 8, 1, 9010, 2300, 6870, .711},
		{64, 64, 8, 1, 12000, 2510, 9570, .223},
	},
}

var fwdF32Costs = costs{
	launch: 6.29, first: 12, lists: .108, carries: 2.5, bandwidth: .782, exposed: .0329, loose: 1.37, unused: .637, tail: .228, edge: .308, empty: 2220, plus: 8050, carry: 2.3, few: 1, width: 1.31, odd: .0234,
	tiles: []tile{
		{64, 64, 4, 3, 16.4, 10800, 4330, .799},
		{64, 64, 4, 3, 126, 14600, 7770, .361},
		{64, 64, 4, 2, 10900, 17100, 13500, 1.41},
		{64, 32, 4, 2, 18700, 1940, 20200, 1.14},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 19.9, first: .956, lists: 1.02, sinks: 2.89, bandwidth: 1.57, exposed: 1.1, loose: 2.52, unused: .092, tail: .138, edge: .00677, empty: 4640, plus: 274, width: .841, odd: .0912,
	tiles: []tile{
		{64, 64, 4, 3, 100, 14800, 9110, 2.1},
		{64, 64, 4, 2, 12600, 14300, 11100, .821},
		{64, 64, 4, 2, 17900, 40100, 4570, 1.03},
		{64, 64, 4, 2, 100, 120000, 1310, .592},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.51, first: 4.72, lists: .0312, carries: 2.08, extra: 2.18, cluster: .633, part: .683, bandwidth: .954, exposed: .538, deep: 999, loose: 2.5, unused: .929, plus: 3780, carry: .0773, row: 207, width: .205,
	tiles: []tile{
		{128, 16, 8, 1, 6540, 947, 1360, .71},
		{128, 16, 8, 1, 8450, 1430, 1410, .478},
		{64, 16, 4, 1, 12500, 1440, 815, .583},
	},
}

var decodeF32Costs = costs{
	launch: 4.2, first: 4.99, lists: 1.86, carries: 2.95, extra: 5.28, cluster: 2.09, part: .0187, bandwidth: .973, exposed: .542, deep: .199, loose: 4.48, unused: .9, plus: 6540, carry: .284, row: 150, half: .515, width: .000855,
	tiles: []tile{
		{64, 8, 8, 1, 5060, 2680, 1320, .548},
		{64, 8, 8, 1, 4210, 3340, 2340, .27},
		{64, 4, 8, 1, 4390, 3130, 2120, .31},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
