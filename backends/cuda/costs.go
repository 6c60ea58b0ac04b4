package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.06, first: 3.22, lists: 1.94, carries: 8.38, several: .0191, extra: 3.64, bandwidth: .997, exposed: .553, deep: 1.72, tail: .003, edge: .0126, empty: 3200, plus: 3240, carry: .931, few: .74, lone: .613, width: .109, narrow: .624,
	tiles: []tile{
		{192, 128, 16, 1, 3320, 2290, 449, 1.61},
		{128, 128, 12, 1, 3710, 2660, 684, 1.2},
		{128, 128, 12, 1, 2540, 4020, 900, .879},
		{128, 112, 12, 1, 3320, 3680, 1500, .912},
		{128, 80, 12, 1, 3550, 3670, 2820, .484},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.13, bandwidth: 1.17, exposed: .472, tail: .553, edge: .00344, empty: 8960, few: .786, width: .0269, narrow: .283,
	tiles: []tile{
		{128, 128, 8, 2, 1660, 5150, 3620, 0},
		{128, 64, 8, 2, 2430, 3560, 2220, 0},
		{128, 64, 8, 2, 3700, 3990, 2480, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 5.63, first: 12.4, lists: .00492, carries: .406, bandwidth: 1.13, exposed: .184, deep: .268, loose: 2.51, unused: .587, tail: .277, edge: .197, empty: 14.3, plus: 6820, carry: .208, few: .986, width: .107, odd: .0275,
	tiles: []tile{
		{128, 64, 4, 3, 3630, 3340, 2480, 1.77},
		{128, 64, 4, 3, 6440, 5290, 3120, 1.01},
		{128, 64, 4, 2, 5890, 4490, 3040, 1.21},
		{128, 64, 4, 2, 5780, 5350, 3760, 1.37},
		{128, 64, 8, 1, 5440, 4820, 4860, .19},
		{128, 64, 8, 1, 6160, 6590, 6490, .371},
	},
}

var bwdSM90Costs = costs{
	launch: 9.12, first: .0136, lists: 7.2, sinks: .0902, several: 7.63, bandwidth: 1.14, exposed: .869, tail: .332, edge: .472, empty: 4480, plus: 1850, width: .0181, hop: 2110, column: .0633, narrow: .0414, later: 211, blind: 5.1,
	tiles: []tile{
		{128, 128, 12, 1, 10600, 3770, 3720, 1.98},
		{64, 128, 12, 1, 9270, 1990, 3930, .791},
		{64, 128, 12, 1, 6220, 2700, 3850, 1},
		{64, 128, 12, 1, 10600, 3180, 4320, .348},
		{64, 128, 12, 1, 12200, 5390, 6950, .159},
	},
}

var bwdSM80Costs = costs{
	launch: 12.7, first: 10.5, lists: .0382, sinks: 7.09, bandwidth: 1.41, exposed: 1.41, loose: 3.08, unused: .0237, tail: .798, edge: .198, empty: 516, plus: 1560, width: .00382, odd: .211, hop: 1570, column: 10.9, later: 6670, blind: .868,
	tiles: []tile{
		{64, 128, 4, 2, 5930, 5960, 5340, 4.75},
		{64, 128, 4, 2, 12800, 1490, 7070, 3.65},
		{64, 128, 8, 1, 9270, 901, 6580, 1.22},
		{64, 128, 8, 1, 11900, 7900, 7800, 1.38},
		{64, 64, 8, 1, 8520, 2430, 6870, .738},
		{64, 64, 8, 1, 12200, 2700, 9750, .179},
	},
}

var fwdF32Costs = costs{
	launch: 6.41, first: 11.6, lists: .116, carries: 1.77, bandwidth: .74, exposed: .0368, loose: 1.37, unused: .755, tail: .216, edge: .308, empty: 1930, plus: 8350, carry: 2.14, few: 1, width: 1.29, odd: .025,
	tiles: []tile{
		{64, 64, 4, 3, 18, 10800, 4330, .747},
		{64, 64, 4, 3, 137, 14600, 7770, .389},
		{64, 64, 4, 2, 10500, 17100, 13500, 1.44},
		{64, 32, 4, 2, 18400, 1940, 19800, 1.16},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 19.2, first: .973, lists: 1.06, sinks: 2.84, bandwidth: 1.28, exposed: 1.14, loose: 2.39, unused: .092, tail: .146, edge: .0069, empty: 5430, plus: 279, width: .826, odd: .0929,
	tiles: []tile{
		{64, 64, 4, 3, 100, 14500, 8940, 2.18},
		{64, 64, 4, 2, 12800, 14000, 11100, .836},
		{64, 64, 4, 2, 17900, 40100, 4570, .929},
		{64, 64, 4, 2, 100, 120000, 1310, .581},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.51, first: 4.81, lists: .044, carries: 2.53, extra: 1.95, cluster: .541, part: .658, bandwidth: .936, exposed: .528, deep: 1000, loose: 2.5, unused: .98, plus: 3990, carry: .0773, row: 207, width: .281,
	tiles: []tile{
		{128, 16, 8, 1, 6540, 982, 1360, .723},
		{128, 16, 8, 1, 8450, 1380, 1430, .523},
		{64, 16, 4, 1, 12500, 1440, 815, .583},
	},
}

var decodeF32Costs = costs{
	launch: 4.2, first: 4.81, lists: 2.38, carries: 3.33, extra: 5.28, cluster: 2.09, part: .0174, bandwidth: .973, exposed: .522, deep: .199, loose: 4.4, unused: .9, plus: 6540, carry: .284, row: 156, half: .515, width: .000988,
	tiles: []tile{
		{64, 8, 8, 1, 5150, 2680, 1320, .558},
		{64, 8, 8, 1, 4060, 3280, 2380, .275},
		{64, 4, 8, 1, 4070, 3130, 2280, .316},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
