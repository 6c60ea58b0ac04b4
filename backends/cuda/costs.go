package cuda

// The costs of the stems. BenchmarkChoice says how well they choose.

var fwdSM90Costs = costs{
	launch: 5.56, extra: 1.78, bandwidth: 0.794, exposed: 0.262, loose: 0.467, looseTogether: 0.301, tail: 0.52, empty: 1.87e+03, hop: 0, later: 0, row: 0, few: 0.623, deep: 3.28, edge: 0.01, blind: 0,
	tiles: []tile{
		{192, 128, 1, 3532, 2541, 449},
		{128, 128, 1, 4426, 2833, 684},
		{128, 80, 1, 5964, 3353, 2744},
	},
}

var fwdSM80Costs = costs{
	launch: 4.79, extra: 0, bandwidth: 1, exposed: 0.162, loose: 0.653, looseTogether: 0.407, tail: 0.384, empty: 50, hop: 0, later: 0, row: 0, few: 0, deep: 0.417, edge: 0.0885, blind: 0,
	tiles: []tile{
		{128, 64, 3, 5009, 3091, 1773},
		{128, 64, 3, 8384, 4770, 2600},
		{128, 64, 2, 6142, 4533, 3188},
		{128, 64, 2, 8595, 5038, 3513},
		{128, 64, 1, 5442, 4831, 50},
		{128, 64, 1, 5359, 6640, 50},
	},
}

var bwdSM90Costs = costs{
	launch: 9.22, extra: 0.0238, bandwidth: 1, exposed: 0.863, loose: 0.422, looseTogether: 1.23, tail: 0.525, empty: 8.74e+03, hop: 2.13e+03, later: 274, row: 0, few: 0, deep: 3.67, edge: 0.276, blind: 3.28,
	tiles: []tile{
		{128, 128, 1, 9489, 5254, 4740},
		{64, 128, 1, 9361, 2814, 4229},
		{64, 128, 1, 10190, 4465, 7743},
	},
}

var bwdSM80Costs = costs{
	launch: 13.2, extra: 0.014, bandwidth: 1, exposed: 0.911, loose: 0.726, looseTogether: 0.31, tail: 0.756, empty: 5.74e+03, hop: 2.63e+03, later: 5.67e+03, row: 0, few: 0, deep: 7.54, edge: 0.271, blind: 0.0852,
	tiles: []tile{
		{64, 128, 2, 3875, 6193, 5549},
		{64, 128, 2, 11091, 8683, 6760},
		{64, 128, 1, 9274, 6927, 1813},
		{64, 128, 1, 10470, 7698, 2900},
		{64, 64, 1, 8434, 7369, 533},
		{64, 64, 1, 12844, 9397, 50},
	},
}

var fwdF32Costs = costs{
	launch: 6.27, extra: 0.01, bandwidth: 0.895, exposed: 0.324, loose: 0.346, looseTogether: 0.592, tail: 0.203, empty: 1.68e+03, hop: 0, later: 0, row: 0, few: 0, deep: 100, edge: 0.0187, blind: 0,
	tiles: []tile{
		{64, 64, 3, 100, 10571, 5418},
		{64, 64, 3, 2516, 15119, 7564},
		{64, 64, 2, 10921, 17649, 12799},
		{64, 32, 2, 16197, 16361, 13777},
		{32, 32, 2, 1526, 34203, 1684},
	},
}

var bwdF32Costs = costs{
	launch: 21.2, extra: 0.01, bandwidth: 0.685, exposed: 1, loose: 0.00112, looseTogether: 0.945, tail: 0.0605, empty: 602, hop: 0, later: 0, row: 0, few: 0, deep: 3, edge: 0.01, blind: 0,
	tiles: []tile{
		{64, 64, 3, 1616, 22751, 2000},
		{64, 64, 2, 10732, 17509, 2000},
		{64, 64, 2, 14988, 34904, 4569},
		{64, 64, 2, 100, 90254, 2259},
		{64, 64, 2, 1515, 76219, 3000},
	},
}

var decodeCosts = costs{
	launch: 4.62, extra: 3.49, bandwidth: 0.978, exposed: 0.662, loose: 0.738, looseTogether: 0.375, tail: 0.972, empty: 2.89e+03, hop: 0, later: 0, row: 159, few: 0, deep: 3.45, edge: 0.125, blind: 0,
	tiles: []tile{
		{128, 16, 1, 4095, 271, 1217},
		{128, 16, 1, 6107, 1496, 50},
		{64, 16, 1, 11726, 1897, 1839},
	},
}

var decodeF32Costs = costs{
	launch: 4.94, extra: 3.77, bandwidth: 0.792, exposed: 0.0785, loose: 1.13, looseTogether: 2.15, tail: 0.684, empty: 692, hop: 0, later: 0, row: 59.4, few: 0, deep: 0.866, edge: 0.104, blind: 0,
	tiles: []tile{
		{64, 8, 1, 2458, 2622, 2600},
		{64, 8, 1, 536, 4537, 50},
		{64, 4, 1, 4563, 4381, 4305},
	},
}
