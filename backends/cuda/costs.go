package cuda

// The costs of each stem, and of float32 in decode_sm80. BenchmarkChoice measures how well
// they choose, and prints what to fit them to. Tiles are those of Hopper; elsewhere some
// differ a little.

var fwdSM90Costs = costs{
	launch: 5.5, first: 5.26, extra: 1.74, bandwidth: 0.773, exposed: 0.24, deep: 3.17, tail: 0.549, edge: 0.01, empty: 2350, plus: 3770, carry: 1.96,
	few: 0.628,
	tiles: []tile{
		{192, 128, 16, 1, 3550, 2520, 449},
		{128, 128, 12, 1, 4370, 2860, 684},
		{128, 128, 12, 1, 5890, 3360, 900},
		{128, 112, 12, 1, 5890, 3500, 1500},
		{128, 80, 12, 1, 5890, 3410, 2820},
	},
}

var fwdSM90ShortCosts = costs{
	launch: 6, bandwidth: 0.88, exposed: 0.4, tail: 0.5, edge: 0.1, empty: 2000,
	tiles: []tile{
		{128, 128, 8, 2, 3500, 3600, 2500},
		{128, 64, 8, 2, 3500, 3200, 2200},
		{128, 64, 8, 2, 3500, 3800, 2600},
	},
}

var fwdSM80Costs = costs{
	launch: 4.96, first: 13.5, bandwidth: 1, exposed: 0.202, deep: 0.498, loose: 2.93, tail: 0.385, edge: 0.154, empty: 53.6, plus: 3960, carry: 0.235,
	tiles: []tile{
		{128, 64, 4, 3, 4530, 3110, 1750},
		{128, 64, 4, 3, 7720, 4690, 2620},
		{128, 64, 4, 2, 5810, 4570, 3060},
		{128, 64, 4, 2, 7770, 5160, 3420},
		{128, 64, 8, 1, 5350, 4780, 4780},
		{128, 64, 8, 1, 5950, 6490, 6490},
	},
}

var bwdSM90Costs = costs{
	launch: 9.13, first: 3.03, bandwidth: 1, exposed: 0.867, tail: 0.555, edge: 0.31, empty: 7570, plus: 3690,
	hop: 2190, later: 300, blind: 1.8,
	tiles: []tile{
		{128, 128, 12, 1, 9720, 5110, 5110},
		{64, 128, 12, 1, 9580, 4230, 4230},
		{64, 128, 12, 1, 10400, 3900, 3900},
		{64, 128, 12, 1, 10400, 4400, 4400},
		{64, 128, 12, 1, 10400, 7670, 7670},
	},
}

var bwdSM80Costs = costs{
	launch: 13.2, first: 10.2, bandwidth: 1, exposed: 0.935, loose: 2.61, tail: 0.663, edge: 0.235, empty: 6010, plus: 422,
	hop: 2720, later: 5230, blind: 0.178,
	tiles: []tile{
		{64, 128, 4, 2, 3640, 6430, 5340},
		{64, 128, 4, 2, 11100, 8980, 6700},
		{64, 128, 8, 1, 9200, 7070, 7070},
		{64, 128, 8, 1, 10800, 7900, 7900},
		{64, 64, 8, 1, 9420, 7400, 7400},
		{64, 64, 8, 1, 13100, 9700, 9700},
	},
}

var fwdF32Costs = costs{
	launch: 5.98, bandwidth: 0.897, exposed: 0.248, loose: 1.96, tail: 0.243, edge: 0.0258, empty: 1790, plus: 17600, carry: 5.42,
	tiles: []tile{
		{64, 64, 4, 3, 100, 10800, 5370},
		{64, 64, 4, 3, 3150, 15000, 7490},
		{64, 64, 4, 2, 10500, 18000, 13100},
		{64, 32, 4, 2, 19600, 15700, 13600},
		{32, 32, 2, 2, 20000, 25000, 13000},
	},
}

var bwdF32Costs = costs{
	launch: 19.8, bandwidth: 0.769, exposed: 0.628, loose: 2.51, tail: 0.166, edge: 0.01, empty: 4250, plus: 500,
	tiles: []tile{
		{64, 64, 4, 3, 100, 17400, 9450},
		{64, 64, 4, 2, 10300, 15200, 10700},
		{64, 64, 4, 2, 15300, 33600, 4570},
		{64, 64, 4, 2, 100, 90400, 1310},
		{64, 64, 4, 2, 5000, 262000, 13900},
	},
}

var decodeCosts = costs{
	launch: 4.08, first: 4.43, extra: 3.29, bandwidth: 0.99, exposed: 0.574, deep: 5.81, loose: 2.71,
	row: 158, plus: 1440, carry: 0.734,
	tiles: []tile{
		{128, 16, 8, 1, 4990, 787, 1330},
		{128, 16, 8, 1, 7030, 1440, 1880},
		{64, 16, 4, 1, 12500, 1870, 815},
	},
}

var decodeF32Costs = costs{
	launch: 4.75, first: 2.2, extra: 3.94, bandwidth: 0.818, exposed: 0.0783, deep: 0.643, loose: 4.82,
	row: 164, plus: 2710, carry: 0.206,
	tiles: []tile{
		{64, 8, 8, 1, 1790, 2670, 1420},
		{64, 8, 8, 1, 936, 4280, 1400},
		{64, 4, 8, 1, 4000, 4080, 3960},
	},
}

// Host tensors, whatever the kernel.
var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}
