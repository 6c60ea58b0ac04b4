package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.06, first: 2.95, lists: 2.24, carries: 7.55, several: .726, extra: 3.47, bandwidth: 1.03, exposed: .543, deep: 1.39, tail: .000855, hidden: .00128, edge: .000222, empty: 3280, plus: 2970, carry: .307, few: .768, lone: .653, duo: 1.21, width: .0913, odd: .026, narrow: .299, sector: .197, boxes: 1.46,
	tiles: []tile{
		{192, 128, 16, 1, 3320, 2180, 449, 1.64},
		{192, 112, 16, 1, 6500, 2400, 449, 1.61},
		{192, 96, 16, 1, 6500, 2350, 449, 1.61},
		{128, 128, 12, 1, 3920, 2660, 684, .964},
		{128, 128, 12, 1, 2970, 3440, 900, .863},
		{128, 112, 12, 1, 3580, 3680, 1500, .951},
		{128, 80, 12, 1, 4930, 3230, 2820, .591},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.05, bandwidth: 1.24, exposed: .481, tail: .783, hidden: .00675, edge: .00914, empty: 5840, few: .787, width: .0549, narrow: .224, sector: .0646,
	tiles: []tile{
		{128, 128, 8, 2, 1920, 5340, 3560, 0},
		{128, 64, 8, 2, 2310, 3500, 2390, 0},
		{128, 64, 8, 2, 3840, 3850, 2570, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 4.61, first: 12.3, lists: .00488, carries: .365, bandwidth: 1.07, exposed: .141, deep: .183, loose: 2.41, unused: .285, tail: .255, hidden: .0479, edge: .11, empty: 13.2, plus: 5210, carry: .183, few: 1.02, width: .0222, odd: .02, sector: .0778,
	tiles: []tile{
		{128, 64, 4, 3, 5820, 3000, 2140, 1.61},
		{128, 64, 4, 3, 8010, 5110, 3180, 1.36},
		{128, 64, 4, 2, 7350, 4250, 3120, 1.47},
		{128, 64, 4, 2, 7470, 5150, 3690, 1.74},
		{128, 64, 8, 1, 6870, 4500, 4560, .411},
		{128, 64, 8, 1, 7170, 6160, 6260, .516},
	},
}

var bwdSM90Costs = costs{
	launch: 9.58, first: .0118, lists: 4.58, sinks: .0769, several: 3.24, bandwidth: 1.25, exposed: .694, tail: .443, hidden: .294, edge: .0948, empty: 6230, plus: 2570, width: .178, odd: 2.04, hop: 2550, column: .592, narrow: .0278, sector: .00565, lag: .456, spread: .053, later: 821, again: .0569, told: 1360, overlap: .208, meet: 8450, sum: 311, ends: 23700,
	tiles: []tile{
		{128, 128, 12, 1, 5820, 3090, 4000, 1.11},
		{64, 128, 12, 1, 7880, 2030, 3910, .644},
		{64, 128, 12, 1, 15400, 3860, 3860, 1},
		{64, 128, 12, 1, 14900, 3010, 4370, .348},
		{64, 128, 12, 1, 16100, 7620, 6580, .101},
	},
}

var bwdSM80Costs = costs{
	launch: 13.2, first: 11.3, lists: .0412, sinks: 1.89, bandwidth: 2.03, exposed: 1.54, loose: 2.91, unused: .00481, tail: .635, hidden: .004, edge: .246, empty: 3720, plus: 1480, width: .079, odd: .0135, hop: 1720, column: 8.24, sector: .00152, later: 5590, overlap: .452, ends: 5910, blind: .617,
	tiles: []tile{
		{64, 128, 4, 2, 2280, 6070, 4780, 5.57},
		{64, 128, 4, 2, 10000, 1140, 6940, 4.06},
		{64, 128, 8, 1, 9090, 858, 6810, 1.31},
		{64, 128, 8, 1, 10200, 4720, 7660, 1.26},
		{64, 64, 8, 1, 8470, 3320, 7250, .543},
		{64, 64, 8, 1, 12700, 3610, 9570, .199},
	},
}

var fwdF32Costs = costs{
	launch: 5.43, first: 10.2, lists: .0681, carries: 6.58, bandwidth: .431, exposed: .018, loose: 1.12, unused: .4, tail: .201, hidden: .379, edge: .287, empty: 2940, plus: 9840, carry: 2.38, few: 1, width: 1.2, odd: .056, sector: .0768,
	tiles: []tile{
		{64, 64, 4, 3, 17.8, 10800, 5200, .89},
		{64, 64, 4, 3, 960, 14700, 8520, .322},
		{64, 64, 4, 2, 13100, 18100, 13300, 1.49},
		{64, 32, 4, 2, 20900, 1940, 20200, 1.08},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 15.5, first: 1.02, lists: 1.15, sinks: 2.89, bandwidth: .834, exposed: 1.3, loose: 2.27, unused: .092, tail: .105, hidden: .894, edge: .00789, empty: 3130, plus: 279, width: .95, odd: .0962, sector: .0717,
	tiles: []tile{
		{64, 64, 4, 3, 100, 16300, 9450, 2.14},
		{64, 64, 4, 2, 16100, 15700, 10300, .897},
		{64, 64, 4, 2, 25700, 38000, 4570, 1.33},
		{64, 64, 4, 2, 93, 120000, 1310, .76},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.51, first: 4.54, lists: .0139, carries: 2.67, extra: 2.54, cluster: .751, part: .77, bandwidth: .972, exposed: .528, deep: 1270, loose: 2.95, queries: .172, unused: .804, plus: 3730, carry: .209, row: 226, width: .233, sector: .163,
	tiles: []tile{
		{128, 16, 8, 1, 6420, 930, 1350, .696},
		{128, 16, 8, 1, 8450, 1240, 1540, .448},
		{64, 16, 4, 1, 12300, 1440, 815, .629},
	},
}

var decodeF32Costs = costs{
	launch: 4.44, first: 5.84, lists: 1.76, carries: 2.61, extra: 4.99, cluster: 1.84, part: .0247, bandwidth: .955, exposed: .486, deep: .29, loose: 6.04, queries: .0413, unused: .667, plus: 5530, carry: .294, row: 140, half: .515, width: .000686, sector: .232,
	tiles: []tile{
		{64, 8, 8, 1, 4290, 2680, 1550, .51},
		{64, 8, 8, 1, 3770, 3400, 2250, .326},
		{64, 4, 8, 1, 5060, 3130, 1900, .305},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
