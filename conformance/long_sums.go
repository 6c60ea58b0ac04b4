package conformance

// The sums of long.go have terms of noise, whose roundings cancel in part. The terms of the
// sums here are equal numbers of more digits than a float32 of the size of the sum has, so
// that each is rounded to the same side: a few thousand show what 65,536 show there, and
// every kernel is asked, however brief the run.
//
// Scores are 0. Of two keys the first alone has a value, and beside a sink there is one key: so all
// weights are 1/2, and dO·v = x gives terms of x/4 and -x/4. No type of two bytes has such a dO.

// longSums is the table of these cases, which come after those of long.go.
var longSums = []longCase{
	{"sum_dbias_rows", "DBias summed over query rows one by one in float32", "b1-h1-g1-n4096-m2-d4-f32-bias", all(once(2), equalTerms)},
	{"sum_dbias_heads", "DBias summed over heads one by one in float32", "b1-h4096-g2048-n2-m2-d4-f32-bias", all(once(1), equalTerms)},
	{"sum_dbias_sequences", "DBias summed over sequences one by one in float32", "b4096-h1-g1-n2-m2-d4-f32-bias", all(once(0), equalTerms)},
	{"sum_dbias_all", "DBias of one row for all summed one by one in float32", "b16-h16-g4-n16-m2-d4-f32-bias", all(once(0), once(1), once(2), equalTerms)},
	{"sum_dsink_rows", "DSink summed over query rows one by one in float32", "b1-h1-g1-n4096-m1-d4-f32-sink", all(sinks(0), equalTerms)},
	{"sum_dsink_sequences", "DSink summed over sequences one by one in float32", "b4096-h1-g1-n1-m1-d4-f32-sink", all(sinks(0), equalTerms)},
}

// equalTerms makes dO·v of each row 4 + 2^-13 for the first key, and 0 for the other.
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
