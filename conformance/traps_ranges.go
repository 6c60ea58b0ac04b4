package conformance

// rangesTraps is the table of traps for mistakes in ranges of keys.
var rangesTraps = []trap{
	{name: "ranges_nan", catches: "0 * NaN from a key outside the ranges", problem: "b1-h2-g1-n5-m29-d8-f32-ranges2", fill: all(sameRanges(3, 9, 17, 22), nanOutsideRanges)},
	{name: "ranges_first", catches: "the first key of a range left out", problem: "b1-h2-g1-n5-m9-d8-f32-ranges1"},
	{name: "ranges_end", catches: "the key after a range taken for its last", problem: "b1-h2-g1-n5-m9-d8-f32-ranges1"},
	{name: "ranges_second", catches: "the second range ignored", problem: "b1-h2-g1-n5-m29-d8-f32-ranges2"},
	{name: "ranges_gap", catches: "the keys between two ranges shown", problem: "b1-h2-g1-n5-m29-d8-f32-ranges2"},
	{name: "ranges_inverted", catches: "the keys in a range hidden", problem: "b1-h2-g1-n5-m29-d8-f32-ranges1"},
	{name: "ranges_band", catches: "ranges that take the place of the band", problem: "b1-h2-g1-n9-m9-d8-f32-causal-ranges1"},
	{name: "ranges_mask", catches: "a mask that takes the place of the ranges", problem: "b1-h2-g1-n9-m19-d8-f32-mask-ranges1"},
	{name: "ranges_heads", catches: "the ranges of the first head for all", problem: "b1-h4-g2-n5-m9-d8-f32-ranges1"},
	{name: "ranges_kv_heads", catches: "the ranges of the key head", problem: "b1-h4-g2-n5-m9-d8-f32-ranges1"},
	{name: "ranges_batch", catches: "the ranges of the first sequence for all", problem: "b2-h2-g1-n5-m9-d8-f32-ranges1"},
	{name: "ranges_row", catches: "the ranges of the first row for all", problem: "b1-h2-g1-n5-m9-d8-f32-ranges1"},
	{name: "ranges_one_batch", catches: "ranges of one batch indexed by batch", problem: "b2-h2-g1-n5-m9-d8-f32-ranges1", fill: rangesOnce(0)},
	{name: "ranges_one_head", catches: "ranges of one head indexed by head", problem: "b2-h3-g1-n5-m9-d8-f32-ranges2", fill: rangesOnce(1)},
	{name: "ranges_packed_row", catches: "ranges indexed by a row's number among all sequences", problem: "b3-h2-g1-n5-m9-d8-f32-ranges1-ragged", layout: packed},
	{name: "ranges_packed_key", catches: "ranges counted from the first packed key", problem: "b3-h2-g1-n5-m19-d8-f32-ranges1-ragged", layout: packed},
	{name: "ranges_aligned", catches: "ranges counted from the diagonal", problem: "b1-h2-g1-n5-m19-d8-f32-ranges1"},
	{name: "ranges_empty_row", catches: "a row without a range given the mean of V", problem: "b1-h2-g1-n5-m9-d8-f32-ranges1", fill: setRanges(emptySecond)},
	{name: "ranges_nan_row", catches: "NaN from a row without a range", problem: "b1-h2-g1-n5-m9-d8-f32-ranges1", fill: setRanges(emptySecond)},
	{name: "ranges_no_row", catches: "NaN from rows that have no range, all of them", problem: "b2-h2-g1-n5-m144-d8-f32-ranges2", fill: sameRanges(7, 7, 99, 99)},
	{name: "ranges_finite", catches: "a hidden score of -5e4 outranking real ones", problem: "b1-h2-g1-n5-m19-d8-f32-ranges1", fill: steer(64, level(-4416))},
	{name: "ranges_sink", catches: "an LSE of -Inf for a row without a range that has a sink", problem: "b1-h2-g1-n5-m9-d8-f32-ranges1-sink", fill: setRanges(emptySecond)},
	{name: "ranges_tile", catches: "a tile skipped because its first key is in no range", problem: "b1-h2-g1-n5-m70-d8-f32-ranges2"},
	{name: "ranges_tiles", catches: "an end at the first tile without a key of a range", problem: "b1-h2-g1-n5-m400-d8-f32-ranges2", fill: all(sameRanges(130, 140, 390, 397), nanOutsideRanges)},
	{name: "ranges_tile_of_row", catches: "tiles skipped by the ranges of the first row of 16", problem: "b1-h2-g1-n40-m400-d8-f32-ranges1", fill: setRanges(climbing(11))},
	{name: "ranges_past_band", catches: "the right edge of a band rounded up to 32 keys where there are ranges", problem: "b1-h2-g1-n20-m420-d8-f32-causal-shift-50-ranges2", fill: setRanges(pastBand)},
	{name: "ranges_whole", catches: "rows taken to see no key of a tile that ranges show whole, and a band in part", problem: "b1-h2-g1-n70-m110-d8-f32-window17.0-ranges2", fill: sameRanges(0, 64, 64, 110)},
	{name: "ranges_documents", catches: "the last row of a document given the ranges of the next one", problem: "b1-h2-g1-n40-m40-d8-f32-causal-ranges1", fill: setRanges(document(13))},
}

// emptySecond gives row 2 an empty range, and the other rows the keys [1, 7).
func emptySecond(i int) []float32 {
	if i == 2 {
		return []float32{4, 4}
	}
	return []float32{1, 7}
}

// climbing gives row i seven keys from `by` times i on.
func climbing(by int) func(i int) []float32 {
	return func(i int) []float32 { return []float32{float32(by * i % 390), float32(by*i%390 + 7)} }
}

// pastBand gives row i six keys, and keys that a band hides which ends before key 371.
func pastBand(i int) []float32 { return []float32{170, 176, float32(372 + i), 420} }

// document gives row i the keys of its document. Each document has n rows, and the last has fewer.
func document(n int) func(i int) []float32 {
	return func(i int) []float32 { return []float32{float32(i / n * n), float32(min(i/n*n+n, 40))} }
}
