package conformance

// statsTraps is the table of traps for mistakes in the statistics of rows.
var statsTraps = []trap{
	{name: "rowmax_unscaled", catches: "the row maximum of scores without their scale", problem: "b1-h2-g1-n5-m9-d16-f32-rowmax"},
	{name: "rowmax_log2", catches: "the row maximum in units of log2", problem: "b1-h2-g1-n5-m9-d8-f32-rowmax"},
	{name: "rowmax_softcap", catches: "the row maximum of scores without their softcap", problem: "b1-h2-g1-n5-m9-d8-f32-softcap2-rowmax"},
	{name: "rowmax_tile", catches: "the row maximum of the last tile alone", problem: "b1-h2-g1-n5-m400-d8-f32-rowmax"},
	{name: "rowmax_first_tile", catches: "the row maximum of the first tile alone", problem: "b1-h2-g1-n5-m400-d8-f32-rowmax"},
	{name: "rowmax_sink", catches: "the sink taken for a score in the row maximum", problem: "b1-h2-g1-n5-m9-d8-f32-sink-rowmax", fill: sinks(20)},
	{name: "rowmax_lse", catches: "LSE taken for the row maximum", problem: "b1-h2-g1-n5-m9-d8-f32-rowmax"},
	{name: "rowmax_no_key", catches: "a finite row maximum for a row that sees no key", problem: "b1-h2-g1-n9-m5-d8-f32-causal-rowmax"},
	{name: "rowmax_band", catches: "hidden keys in the row maximum", problem: "b1-h2-g1-n9-m9-d8-f32-causal-rowmax"},
	{name: "rowmax_nan", catches: "a row maximum that ignores NaN", problem: "b1-h2-g1-n5-m9-d8-f32-rowmax", fill: nanKey},
	{name: "rowmax_heads", catches: "the row maximum of the key head", problem: "b1-h4-g2-n5-m9-d8-f32-rowmax"},
	{name: "rowmax_padding", catches: "row maxima not -Inf beyond a sequence", problem: "b3-h2-g1-n5-m9-d8-f32-ragged-rowmax"},
	{name: "rowmax_carry", catches: "the row maximum of earlier keys lost", problem: "b1-h2-g1-n5-m9-d8-f32-carry-rowmax"},
	{name: "rowmax_carry_lse", catches: "the LSE of earlier keys taken for their row maximum", problem: "b1-h2-g1-n5-m9-d8-f32-carry-rowmax", fill: heavyEarlier},
	{name: "rowmax_carry_nothing", catches: "the row maximum read where LSE says that there are no earlier keys", problem: "b1-h2-g1-n5-m9-d8-f32-carry-rowmax", fill: nanWithoutEarlier},

	{name: "keymass_running", catches: "weights relative to the running maximum summed by key", problem: "b1-h2-g1-n5-m400-d8-f32-keymass"},
	{name: "keymass_sum", catches: "weights summed by key before their division by the sum of the row", problem: "b1-h2-g1-n5-m9-d8-f32-keymass"},
	{name: "keymass_mean", catches: "the mean of a key's weights instead of their sum", problem: "b1-h2-g1-n5-m9-d8-f32-keymass"},
	{name: "keymass_last_row", catches: "the weights of the last row alone", problem: "b1-h2-g1-n70-m9-d8-f32-keymass"},
	{name: "keymass_dropout", catches: "weights summed by key after dropout", problem: "b1-h2-g1-n5-m9-d8-f32-dropout0.25-keymass"},
	{name: "keymass_sink", catches: "the sink left out of the weights that are summed by key", problem: "b1-h2-g1-n5-m9-d8-f32-sink-keymass"},
	{name: "keymass_carry", catches: "earlier keys left out of the weights that are summed by key", problem: "b1-h2-g1-n5-m9-d8-f32-carry-keymass"},
	{name: "keymass_heads", catches: "sums of keys written to the key head", problem: "b1-h4-g2-n5-m9-d8-f32-keymass"},
	{name: "keymass_packed_key", catches: "sums of keys counted from the first packed key", problem: "b3-h2-g1-n5-m9-d8-f32-ragged-keymass", layout: packed},
	{name: "keymass_page", catches: "sums of keys counted in the pool of pages", problem: "b3-h2-g1-n5-m19-d8-f32-ragged-page4-keymass"},
	{name: "keymass_padding", catches: "sums of keys left unwritten beyond a sequence", problem: "b3-h2-g1-n5-m9-d8-f32-ragged-keymass"},
	{name: "keymass_empty_row", catches: "NaN from a row whose scores are all -Inf in the sums of keys", problem: "b1-h2-g1-n5-m9-d8-f32-bias-keymass", fill: biasInf(func(i, _ int) bool { return i == 2 })},
}

// nanKey sets an element of a key to NaN.
func nanKey(in *Inputs) { in.k[3*in.p.Dim+1] = nan }

// heavyEarlier makes the LSE of earlier keys larger than every score.
func heavyEarlier(in *Inputs) {
	for i := range in.earlierLSE {
		in.earlierLSE[i] += 9
	}
}
