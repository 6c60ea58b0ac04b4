package conformance

// int8Traps is the table of traps for mistakes in int8 keys and values.
var int8Traps = []trap{
	{name: "int8_unsigned", catches: "int8 elements read as unsigned", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8"},
	{name: "int8_k_scale", catches: "the scales of K ignored", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8"},
	{name: "int8_v_scale", catches: "the scales of V ignored", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8"},
	{name: "int8_same_scale", catches: "the scales of K for V", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8"},
	{name: "int8_group", catches: "the first scale of a row for all its groups", problem: "b1-h2-g1-n2-m5-d96-f32-int8group32"},
	{name: "int8_group_64", catches: "groups of 64 taken for groups of 32", problem: "b1-h2-g1-n2-m5-d128-f32-int8group64"},
	{name: "int8_short_group", catches: "the last group of a row, which is short, given the scale before it", problem: "b1-h2-g1-n5-m9-d40-f32-int8group32"},
	{name: "int8_v_dim", catches: "the scales of V found by the head dim of K", problem: "b1-h2-g1-n2-m5-d96-dv32-f32-int8group32"},
	{name: "int8_row", catches: "the scales of the first key for all", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8"},
	{name: "int8_head", catches: "the scales of the first KV head for all", problem: "b1-h4-g2-n5-m9-d8-f32-int8group8"},
	{name: "int8_query_head", catches: "scales found by the query head", problem: "b2-h4-g2-n5-m9-d8-f32-int8group8"},
	{name: "int8_batch", catches: "the scales of the first sequence for all", problem: "b2-h2-g1-n5-m9-d8-f32-int8group8"},
	{name: "int8_packed", catches: "the scales of packed keys found by the key's number in its sequence", problem: "b3-h2-g1-n5-m9-d8-f32-int8group8-ragged", layout: packed},
	{name: "int8_page", catches: "scales found by the key's number, not by its page", problem: "b2-h2-g1-n5-m19-d8-f32-int8group8-ragged-page4"},
	{name: "int8_f16_scale", catches: "f16 scales read as bf16", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8", fill: longScales},
	{name: "int8_f32_scale", catches: "f32 scales rounded to f16", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8", fill: wideScales},
	{name: "int8_zero_scale", catches: "a division by a scale of 0", problem: "b1-h2-g1-n5-m9-d40-f32-int8group32", fill: zeroScales},
	{name: "int8_lowest", catches: "the element -128 taken for -127", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8", fill: lowestCodes},
	{name: "int8_nan_scale", catches: "0 * NaN from the scale of a key that no row sees", problem: "b1-h2-g1-n5-m21-d8-f32-causal-topleft-int8group8", fill: nanScales(nan)},
	{name: "int8_query", catches: "Q rounded to bf16", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8", fill: wideQuery, types: dtypes[:1]},
	{name: "int8_large_query", catches: "Q rounded to 15 bits below the largest element of its row", problem: "b1-h2-g1-n5-m9-d8-f32-int8group8", fill: largeQuery, types: dtypes[1:]},
	{name: "int8_bias", catches: "a bias multiplied by the scale of the key", problem: "b1-h2-g1-n5-m9-d8-f32-bias-int8group8"},
	{name: "int8_tile", catches: "scales of a tile's first key for the tile", problem: "b1-h2-g1-n2-m40-d32-f32-int8group32"},
}
