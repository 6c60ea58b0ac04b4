package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what TestFitCosts fits them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 6.06, first: 2.95, lists: 2.2, carries: 7.98, several: 1.04, extra: 3.47, bandwidth: 1.03, exposed: .543, deep: 1.44, tail: .000801, hidden: .000533, edge: .000192, empty: 3340, plus: 2970, carry: .214, few: .768, lone: .653, duo: 1.21, width: .0896, odd: .0209, narrow: .288, sector: .201, boxes: 1.49,
	tiles: []tile{
		{192, 128, 16, 1, 3320, 2180, 449, 1.64},
		{192, 112, 16, 1, 6500, 2400, 449, 1.61},
		{192, 96, 16, 1, 6500, 2350, 449, 1.61},
		{128, 128, 12, 1, 3920, 2660, 684, .946},
		{128, 128, 12, 1, 2970, 3440, 900, .863},
		{128, 112, 12, 1, 3580, 3680, 1500, .916},
		{128, 80, 12, 1, 4930, 3230, 2820, .591},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 4.05, bandwidth: 1.26, exposed: .49, tail: .783, hidden: .00392, edge: .00897, empty: 5840, few: .787, width: .0601, narrow: .228, sector: .0734,
	tiles: []tile{
		{128, 128, 8, 2, 1920, 5340, 3560, 0},
		{128, 64, 8, 2, 2310, 3500, 2390, 0},
		{128, 64, 8, 2, 3840, 3850, 2570, 0},
	},
}

var fwdSM80Costs = costs{
	launch: 4.61, first: 12.3, lists: .00489, carries: .293, bandwidth: 1.07, exposed: .133, deep: .183, loose: 2.41, unused: .275, tail: .255, hidden: .0346, edge: .089, empty: 11.3, plus: 5210, carry: .135, few: 1.02, width: .0157, odd: .0732, sector: .0787,
	tiles: []tile{
		{128, 64, 4, 3, 5930, 3000, 2140, 1.61},
		{128, 64, 4, 3, 8010, 5110, 3180, 1.36},
		{128, 64, 4, 2, 7490, 4250, 3120, 1.44},
		{128, 64, 4, 2, 7470, 5150, 3760, 1.74},
		{128, 64, 8, 1, 6870, 4590, 4560, .403},
		{128, 64, 8, 1, 7300, 6160, 6260, .516},
	},
}

var bwdSM90Costs = costs{
	launch: 9.58, first: .0118, lists: 4.5, sinks: .0769, several: 3.66, bandwidth: 1.27, exposed: .694, tail: .46, hidden: .289, edge: .104, empty: 6350, plus: 2520, width: .188, odd: 1.97, hop: 2600, column: .27, narrow: .0268, sector: .00556, lag: .465, spread: .054, later: 791, again: .0422, told: 1330, overlap: .204, meet: 8290, sum: 305, ends: 23300,
	tiles: []tile{
		{128, 128, 12, 1, 5930, 3090, 4000, 1.11},
		{64, 128, 12, 1, 8030, 2030, 3910, .656},
		{64, 128, 12, 1, 15400, 3860, 3860, 1},
		{64, 128, 12, 1, 14900, 3010, 4370, .348},
		{64, 128, 12, 1, 16100, 7620, 6580, .0992},
	},
}

var bwdSM80Costs = costs{
	launch: 13.2, first: 11.5, lists: .042, sinks: 1.79, bandwidth: 2.03, exposed: 1.54, loose: 2.91, unused: .00411, tail: .635, hidden: .00258, edge: .255, empty: 3720, plus: 1300, width: .0852, odd: .0128, hop: 1720, column: 8.39, sector: .00107, later: 5590, overlap: .468, ends: 5190, blind: .606,
	tiles: []tile{
		{64, 128, 4, 2, 2820, 6070, 4780, 5.57},
		{64, 128, 4, 2, 10200, 1120, 6940, 4.06},
		{64, 128, 8, 1, 9090, 858, 6810, 1.31},
		{64, 128, 8, 1, 10200, 4810, 7660, 1.26},
		{64, 64, 8, 1, 8470, 3680, 7250, .543},
		{64, 64, 8, 1, 12700, 3930, 9570, .206},
	},
}

var fwdF32Costs = costs{
	launch: 5.43, first: 10.2, lists: .0626, carries: 6.95, bandwidth: .431, exposed: .02, loose: 1.12, unused: .386, tail: .197, hidden: .386, edge: .298, empty: 3000, plus: 9480, carry: 2.25, few: 1, width: 1.2, odd: .0728, sector: .074,
	tiles: []tile{
		{64, 64, 4, 3, 17, 10800, 5200, .874},
		{64, 64, 4, 3, 941, 14700, 8520, .328},
		{64, 64, 4, 2, 13100, 18100, 13300, 1.49},
		{64, 32, 4, 2, 20900, 1940, 20200, 1.08},
		{32, 32, 2, 2, 20000, 25000, 13000, .996},
	},
}

var bwdF32Costs = costs{
	launch: 15.5, first: 1.04, lists: 1.21, sinks: 2.94, bandwidth: .834, exposed: 1.3, loose: 2.05, unused: .092, tail: .101, hidden: .894, edge: .00789, empty: 3130, plus: 279, width: .95, odd: .0998, sector: .0979,
	tiles: []tile{
		{64, 64, 4, 3, 100, 16000, 9450, 2.14},
		{64, 64, 4, 2, 16100, 15700, 10300, .897},
		{64, 64, 4, 2, 25700, 38000, 4570, 1.31},
		{64, 64, 4, 2, 89.6, 120000, 1310, .746},
		{64, 64, 4, 2, 5000, 262000, 13900, .768},
	},
}

var decodeCosts = costs{
	launch: 3.51, first: 4.54, lists: .013, carries: 2.87, extra: 2.64, cluster: .778, part: .756, bandwidth: .972, exposed: .528, deep: 1180, loose: 2.95, queries: .16, unused: .789, plus: 3660, carry: .347, row: 226, width: .242, sector: .172,
	tiles: []tile{
		{128, 16, 8, 1, 6420, 965, 1350, .696},
		{128, 16, 8, 1, 8450, 1240, 1540, .474},
		{64, 16, 4, 1, 12300, 1440, 815, .665},
	},
}

var decodeF32Costs = costs{
	launch: 4.44, first: 5.84, lists: 1.79, carries: 2.7, extra: 5.08, cluster: 1.84, part: .0274, bandwidth: .955, exposed: .486, deep: .301, loose: 6.04, queries: .0394, unused: .667, plus: 5530, carry: .299, row: 145, half: .592, width: .000674, sector: .232,
	tiles: []tile{
		{64, 8, 8, 1, 4290, 2680, 1550, .51},
		{64, 8, 8, 1, 3770, 3400, 2250, .326},
		{64, 4, 8, 1, 4970, 3130, 1940, .305},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
