package conformance

// In the cases of long.go the terms of a sum are noise, and their rounding errors partly cancel.
// Here all terms of a sum are equal. Each term needs more digits than a float32 of the sum's size
// has, so all additions round to the same side. A few thousand terms then have the error of 65,536
// noisy terms. The cases are therefore short, and every kernel runs them even if Options.Brief is
// set.
//
// All scores are 0. A case has two keys, or one key and a sink, so all weights are 1/2. Only the
// first key has a nonzero V. Let x be the dot product of dO and the first key's V. Then the terms
// of the gradients are x/4 and -x/4. No 16-bit type represents the dO that equalTerms sets.

// longSums is the table of cases with equal terms. Long returns them after longCases.
var longSums = []longCase{
	{"sum_dbias_rows", "DBias summed over query rows one by one in float32", "b1-h1-g1-n4096-m2-d4-f32-bias", all(once(2), equalTerms)},
	{"sum_dbias_heads", "DBias summed over heads one by one in float32", "b1-h4096-g2048-n2-m2-d4-f32-bias", all(once(1), equalTerms)},
	{"sum_dbias_sequences", "DBias summed over sequences one by one in float32", "b4096-h1-g1-n2-m2-d4-f32-bias", all(once(0), equalTerms)},
	{"sum_dbias_all", "DBias of one row for all summed one by one in float32", "b16-h16-g4-n16-m2-d4-f32-bias", all(once(0), once(1), once(2), equalTerms)},
	{"sum_dsink_rows", "DSink summed over query rows one by one in float32", "b1-h1-g1-n4096-m1-d4-f32-sink", all(sinks(0), equalTerms)},
	{"sum_dsink_sequences", "DSink summed over sequences one by one in float32", "b4096-h1-g1-n1-m1-d4-f32-sink", all(sinks(0), equalTerms)},
}

// equalTerms makes dO·v equal to 4 + 2^-13 for the first key and to 0 for the second key, in every
// row.
func equalTerms(in *Inputs) {
	clear(in.bias.x)
	clear(in.k)
	only := func(first float32) func(int, []float32) {
		return func(_ int, row []float32) { clear(row); row[0] = first }
	}
	eachRow(in.q, in.p.QShape(), only(1))
	eachRow(in.do, in.p.OShape(), only(4+0x1p-13))
	eachRow(in.v, in.p.VShape(), func(j int, row []float32) { clear(row); row[0] = float32(max(0, 1-j)) })
}
