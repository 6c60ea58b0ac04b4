package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.29, first: 4.94, several: .478, extra: 1.5, bandwidth: .663, exposed: .235, deep: 3.03, tail: .0453, edge: .0143, empty: 1150, plus: 3260, carry: 1.48, few: .713, flat: .326,
	tiles: []tile{
		{192, 128, 16, 1, 3750, 2010, 449},
		{128, 128, 12, 1, 3590, 2710, 684},
		{128, 128, 12, 1, 2780, 3480, 900},
		{128, 112, 12, 1, 3530, 3980, 1500},
		{128, 80, 12, 1, 4050, 3880, 2820},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.16, bandwidth: .727, exposed: .172, tail: .459, edge: .0211, empty: 6850,
	tiles: []tile{
		{128, 128, 8, 2, 2910, 4400, 2900},
		{128, 64, 8, 2, 3000, 3400, 2000},
		{128, 64, 8, 2, 3410, 4050, 2470},
	},
}

var fwdSM80Costs = costs{
	launch: 4.44, first: 13.1, bandwidth: 1.29, exposed: .0894, deep: .122, loose: 2.46, tail: .247, edge: .265, empty: 40.7, plus: 789, carry: .126, flat: .686,
	tiles: []tile{
		{128, 64, 4, 3, 6190, 2680, 2020},
		{128, 64, 4, 3, 8020, 5100, 3180},
		{128, 64, 4, 2, 7020, 4250, 3210},
		{128, 64, 4, 2, 9820, 5160, 3860},
		{128, 64, 8, 1, 6320, 4780, 4780},
		{128, 64, 8, 1, 7010, 5190, 6990},
	},
}

var bwdSM90Costs = costs{
	launch: 9.99, first: .542, several: 3.8, bandwidth: 1, exposed: .807, tail: .171, edge: .249, empty: 3590, plus: 1770, flat: 1.05, hop: 2270, later: 32.9, blind: 2.57,
	tiles: []tile{
		{128, 128, 12, 1, 7990, 3420, 4740},
		{64, 128, 12, 1, 8130, 3200, 4390},
		{64, 128, 12, 1, 7470, 3980, 3900},
		{64, 128, 12, 1, 6130, 5220, 4400},
		{64, 128, 12, 1, 12600, 7390, 7530},
	},
}

var bwdSM80Costs = costs{
	launch: 12.3, first: 6.58, bandwidth: 1.2, exposed: 1.04, loose: 2.91, tail: .732, edge: .269, empty: 1110, plus: 3650, flat: 1.44, hop: 3050, later: 5690, blind: .158,
	tiles: []tile{
		{64, 128, 4, 2, 5920, 5860, 4520},
		{64, 128, 4, 2, 9360, 7670, 7090},
		{64, 128, 8, 1, 7750, 7070, 7070},
		{64, 128, 8, 1, 11700, 7900, 8200},
		{64, 64, 8, 1, 6300, 5840, 7400},
		{64, 64, 8, 1, 14800, 6680, 9700},
	},
}

var fwdF32Costs = costs{
	launch: 7.16, bandwidth: .839, exposed: .0502, loose: 1.67, tail: .367, edge: .0251, empty: 1150, plus: 23500, carry: 3.76, flat: .0595,
	tiles: []tile{
		{64, 64, 4, 3, 82.4, 10400, 5000},
		{64, 64, 4, 3, 2860, 14300, 6840},
		{64, 64, 4, 2, 14700, 16800, 13900},
		{64, 32, 4, 2, 31700, 1460, 13600},
		{32, 32, 2, 2, 20000, 25000, 13000},
	},
}

var bwdF32Costs = costs{
	launch: 17.5, bandwidth: 1.13, exposed: 1.11, loose: 3.1, tail: .216, edge: .00581, empty: 3830, plus: 458, flat: .326,
	tiles: []tile{
		{64, 64, 4, 3, 100, 14000, 8060},
		{64, 64, 4, 2, 12300, 14500, 10300},
		{64, 64, 4, 2, 17900, 40900, 4570},
		{64, 64, 4, 2, 100, 94000, 1310},
		{64, 64, 4, 2, 5000, 262000, 13900},
	},
}

var decodeCosts = costs{
	launch: 4.08, first: 3.34, extra: 2.3, bandwidth: .838, exposed: .347, deep: 2.62, loose: 3.12, plus: 3590, carry: .338, row: 153, width: .102, flat: .0308,
	tiles: []tile{
		{128, 16, 8, 1, 5820, 1180, 1430},
		{128, 16, 8, 1, 7840, 1340, 1690},
		{64, 16, 4, 1, 14200, 1980, 815},
	},
}

var decodeF32Costs = costs{
	launch: 5.84, first: 2.46, extra: 4.31, bandwidth: .881, exposed: .65, deep: .25, loose: 5.57, plus: 6610, carry: .218, row: 88.3, half: .518, width: .0121, flat: .237,
	tiles: []tile{
		{64, 8, 8, 1, 2910, 2530, 1310},
		{64, 8, 8, 1, 4280, 2890, 1400},
		{64, 4, 8, 1, 7170, 2850, 1710},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
