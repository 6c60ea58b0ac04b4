package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.06, first: 3.04, lists: 2.03, carries: 8.38, several: .0242, extra: 3.44, bandwidth: .943, exposed: .486, deep: 1.65, tail: .0712, edge: .107, empty: 3300, plus: 3010, carry: .931, few: .74, width: .00686, narrow: .608,
	tiles: []tile{
		{192, 128, 16, 1, 3140, 1980, 449, 1.96},
		{128, 128, 12, 1, 3520, 2660, 684, 1.31},
		{128, 128, 12, 1, 2540, 3810, 900, .912},
		{128, 112, 12, 1, 3150, 3610, 1500, .983},
		{128, 80, 12, 1, 3360, 3670, 2820, .515},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.13, bandwidth: 1.15, exposed: .472, tail: .553, edge: .00822, empty: 8960, few: .786, width: .0634, narrow: .252,
	tiles: []tile{
		{128, 128, 8, 2, 1570, 5150, 3760, 0},
		{128, 64, 8, 2, 2410, 3560, 2220, 0},
		{128, 64, 8, 2, 3770, 3990, 2430, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 5.63, first: 12.4, lists: .00798, carries: .406, bandwidth: 1.11, exposed: .162, deep: .288, loose: 2.51, unused: .545, tail: .27, edge: .212, empty: 20.2, plus: 6570, carry: .208, few: .986, width: .073, odd: .072,
	tiles: []tile{
		{128, 64, 4, 3, 3570, 3220, 2430, 1.8},
		{128, 64, 4, 3, 6440, 5290, 3180, 1.03},
		{128, 64, 4, 2, 5780, 4570, 3040, 1.17},
		{128, 64, 4, 2, 5470, 5350, 3760, 1.4},
		{128, 64, 8, 1, 5140, 4780, 4950, .183},
		{128, 64, 8, 1, 5830, 6560, 6610, .378},
	},
}

var bwdSM90Costs = costs{
	launch: 9.29, first: .0208, lists: 7.34, sinks: .148, several: 6.35, bandwidth: 1.14, exposed: .885, tail: .332, edge: .463, empty: 4480, plus: 1960, width: .0104, hop: 2150, column: .115, narrow: .0511, later: 7.41, blind: 5.1,
	tiles: []tile{
		{128, 128, 12, 1, 10400, 3770, 3790, 2.02},
		{64, 128, 12, 1, 9100, 1950, 3930, .852},
		{64, 128, 12, 1, 5680, 2700, 3920, 1},
		{64, 128, 12, 1, 10200, 3180, 4320, .348},
		{64, 128, 12, 1, 11500, 5290, 7080, .175},
	},
}

var bwdSM80Costs = costs{
	launch: 12.7, first: 10.7, lists: .0695, sinks: 6.83, bandwidth: 1.41, exposed: 1.41, loose: 3.02, unused: .0419, tail: .798, edge: .205, empty: 576, plus: 1370, width: .0105, odd: .15, hop: 1630, column: 10.5, later: 6670, blind: .763,
	tiles: []tile{
		{64, 128, 4, 2, 5820, 5960, 5340, 4.75},
		{64, 128, 4, 2, 12600, 1820, 7070, 3.65},
		{64, 128, 8, 1, 9270, 1170, 6580, 1.22},
		{64, 128, 8, 1, 11900, 7900, 7800, 1.35},
		{64, 64, 8, 1, 8360, 2710, 6870, .766},
		{64, 64, 8, 1, 12000, 3290, 9750, .214},
	},
}

var fwdF32Costs = costs{
	launch: 6.41, first: 11.6, lists: .175, carries: 1.77, bandwidth: .796, exposed: .0597, loose: 1.37, unused: .714, tail: .208, edge: .308, empty: 2000, plus: 8350, carry: 2.14, few: 1, width: 1.29, odd: .0331,
	tiles: []tile{
		{64, 64, 4, 3, 21.5, 10800, 4330, .72},
		{64, 64, 4, 3, 195, 14600, 7630, .411},
		{64, 64, 4, 2, 10500, 17100, 13500, 1.44},
		{64, 32, 4, 2, 18400, 1940, 19800, 1.16},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 19.2, first: 1.03, lists: 1.14, sinks: 2.84, bandwidth: 1.38, exposed: 1.18, loose: 2.39, unused: .092, tail: .172, edge: .0069, empty: 5430, plus: 294, width: .841, odd: .104,
	tiles: []tile{
		{64, 64, 4, 3, 100, 14500, 8940, 2.18},
		{64, 64, 4, 2, 12800, 14000, 11100, .884},
		{64, 64, 4, 2, 17900, 40100, 4570, .946},
		{64, 64, 4, 2, 100, 120000, 1310, .581},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.51, first: 4.64, lists: .104, carries: 2.53, extra: 1.85, cluster: .558, part: .784, bandwidth: .936, exposed: .528, deep: 972, loose: 2.5, unused: .962, plus: 3770, carry: .0773, row: 207, width: .273,
	tiles: []tile{
		{128, 16, 8, 1, 6540, 1000, 1390, .9},
		{128, 16, 8, 1, 8450, 1380, 1430, .64},
		{64, 16, 4, 1, 12500, 1390, 815, .728},
	},
}

var decodeF32Costs = costs{
	launch: 4.2, first: 4.81, lists: 2.38, carries: 3.33, extra: 5.28, cluster: 2.05, part: .0151, bandwidth: .973, exposed: .532, deep: .199, loose: 4.4, unused: .883, plus: 6540, carry: .284, row: 156, half: .525, width: .001,
	tiles: []tile{
		{64, 8, 8, 1, 5150, 2680, 1320, .67},
		{64, 8, 8, 1, 4060, 3280, 2380, .325},
		{64, 4, 8, 1, 4070, 3130, 2280, .374},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
