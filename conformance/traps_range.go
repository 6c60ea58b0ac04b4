package conformance

import (
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// rangeTraps is the table of traps at the ends of the number range: the lowest finite scores,
// scores far from the others, infinities and NaN. docs/limits.md has the rules.
var rangeTraps = []trap{
	// Even the lowest finite score counts: if all scores of a row have this value, O is the mean of
	// V over the row's keys.
	{name: "bias_min_f32", catches: "a row of the lowest float32 taken for a row that sees no key", problem: "b1-h2-g1-n5-m70-d8-f32-bias", fill: all(wideBias, biasRows(-math.MaxFloat32, 1, 3))},
	{name: "bias_min_bf16", catches: "a row of the lowest bf16 taken for a row that sees no key", problem: "b1-h2-g1-n5-m70-d8-f32-bias", fill: biasRows(-0x1.fep127, 1, 3), types: []flashkit.DType{flashkit.Float32, flashkit.BFloat16}},
	{name: "bias_min_f16", catches: "a row of the lowest f16 taken for a row that sees no key", problem: "b1-h2-g1-n5-m70-d8-f32-bias", fill: biasRows(-65504, 1, 3), types: []flashkit.DType{flashkit.Float32, flashkit.Float16}},
	{name: "bias_1e30", catches: "a row of scores below -1e29 taken for a row that sees no key", problem: "b1-h2-g1-n5-m70-d8-f32-bias", fill: all(wideBias, biasRows(-1e30, 1, 3))},
	{name: "bias_min_part", catches: "keys of the lowest float32 that keep their weight when a higher score comes", problem: "b1-h2-g1-n5-m70-d8-f32-bias", fill: all(wideBias, biasPart(-math.MaxFloat32))},
	{name: "bias_largest", catches: "a row of the largest float32 that overflows in base 2", problem: "b1-h2-g1-n5-m70-d8-f32-bias", fill: all(wideBias, biasRows(math.MaxFloat32, 1, 3))},

	// The score of one key is far above the other keys' scores. The products are exact, so the
	// key's weight is 1 in both passes.
	{name: "far_key_1e4", catches: "the binary exponent of a weight kept in 16 bits", problem: "b1-h2-g2-n5-m90-d8-f32-scale4", fill: farKey(1<<6, 1<<6)},
	{name: "far_key_1e8", catches: "P of the backward pass from an LSE that is rounded once more", problem: "b1-h2-g2-n5-m90-d8-f32-scale4", fill: farKey(1<<12, 1<<12)},
	{name: "far_key_1e11", catches: "the binary exponent of a weight kept in 32 bits", problem: "b1-h2-g2-n5-m90-d8-f32-scale256", fill: farKey(1<<14, 1<<13)},
	{name: "far_key_scale", catches: "a maximum rounded otherwise than the scores it is taken off", problem: "b1-h2-g2-n5-m90-d8-f32-scale1267650600000000000000000000000", fill: farKey(1, 1)},

	// Infinite scores, and scores of NaN.
	{name: "nan_query", catches: "a row of NaN given the mean of V", problem: "b1-h2-g2-n9-m9-d8-f32-causal", fill: nanQuery(2)},
	{name: "bias_inf", catches: "a score of +Inf taken for the largest finite one", problem: "b1-h2-g2-n9-m9-d8-f32-causal-bias", fill: biasPair(2, 1, inf)},
	{name: "bias_nan", catches: "a score of NaN that hides its key", problem: "b1-h2-g2-n9-m9-d8-f32-causal-bias", fill: biasPair(2, 1, nan)},
	{name: "bias_behind_mask", catches: "NaN from the bias of a pair that the mask hides", problem: "b1-h2-g1-n9-m9-d8-f32-causal-bias-mask", fill: biasBehindMask},

	// Sinks, slopes and earlier keys.
	{name: "sink_inf", catches: "O = 0 and LSE = +Inf from a sink of +Inf", problem: "b2-h3-g3-n9-m5-d8-f32-causal-sink", fill: sinkList(0.5, inf, -1)},
	{name: "sink_nan", catches: "a sink of NaN ignored", problem: "b2-h3-g3-n9-m5-d8-f32-causal-sink", fill: sinkList(0.5, nan, -1)},
	{name: "sink_none", catches: "NaN from a sink of -Inf where a row sees no key", problem: "b2-h3-g3-n9-m5-d8-f32-causal-sink", fill: sinkList(0.5, -inf, -1)},
	{name: "sink_huge", catches: "a finite sink that overflows in base 2", problem: "b1-h6-g3-n9-m5-d8-f32-causal-sink", fill: sinkList(math.MaxFloat32, -math.MaxFloat32, 3e38, -3e38, 1e11, -1e30), dlse: true},
	{name: "alibi_inf", catches: "an infinite slope that hides the keys beside the diagonal", problem: "b1-h4-g4-n9-m5-d8-f32-causal-topleft-alibi", fill: slopeList(inf, -inf, nan, 0.25)},
	{name: "alibi_huge", catches: "a slope that overflows in units of several keys", problem: "b1-h4-g4-n9-m9-d8-f32-shift-1-alibi", fill: slopeList(1e38, 3e38, 2e37, 1e30)},
	{name: "carry_huge", catches: "an earlier LSE that overflows in base 2", problem: "b1-h2-g1-n5-m9-d8-f32-carry", fill: earlierList(3e38, -3e38, 1e11, -1e11, math.MaxFloat32, -math.MaxFloat32)},
	{name: "carry_nan", catches: "an earlier LSE of NaN ignored", problem: "b1-h2-g1-n5-m9-d8-f32-carry", fill: earlierList(0, nan, 0, inf, 0)},
}

// biasRows sets all biases of the given rows to x.
func biasRows(x float32, rows ...int) func(in *Inputs) {
	return func(in *Inputs) {
		in.bias.eachPair(func(i, _ int, y *float32) {
			if slices.Contains(rows, i) {
				*y = x
			}
		})
	}
}

// biasPart sets some biases to x: in row 0 for the first 40 keys, in row 1 for all later keys, in
// row 2 for all keys but the last, and in row 3 for all keys.
func biasPart(x float32) func(in *Inputs) {
	return func(in *Inputs) {
		last := in.p.KVLen - 1
		in.bias.eachPair(func(i, j int, y *float32) {
			if i == 0 && j < 40 || i == 1 && j >= 40 || i == 2 && j < last || i == 3 {
				*y = x
			}
		})
	}
}

// biasPair sets the bias of row i and key j to x in every head.
func biasPair(i, j int, x float32) func(in *Inputs) {
	return func(in *Inputs) {
		in.bias.eachPair(func(row, key int, y *float32) {
			if row == i && key == j {
				*y = x
			}
		})
	}
}

// biasBehindMask sets the bias to +Inf or NaN in pairs that the mask hides, and to NaN in pairs
// that the band hides.
func biasBehindMask(in *Inputs) {
	nanBehindBand(in)
	for at, x := range in.mask.x {
		if x == 0 {
			in.bias.x[at] = [...]float32{inf, nan}[at%2]
		}
	}
}

// farKey sets Q and K so that each score is q times k times the scale times a number with few bits.
// In each row one key's score is far above the others. In the first head, odd rows reverse the sign
// of all scores. In the second head, all scores of a row have the same sign.
func farKey(q, k float32) func(in *Inputs) {
	return func(in *Inputs) {
		eachRow(in.q, in.p.QShape(), func(i int, row []float32) {
			clear(row)
			row[0] = q * (1 + float32(i)/8) * float32(1-i%2*2)
		})
		head := -1
		eachRow(in.k, in.p.KShape(), func(j int, row []float32) {
			if j == 0 {
				head++
			}
			x := float32(j%7) / 16
			switch j {
			case 13:
				x = -1.75
			case 41:
				x = 1.5
			}
			row[0] = k * (x - 4*float32(head%2))
		})
	}
}

// nanQuery sets the given row of Q to NaN.
func nanQuery(row int) func(in *Inputs) {
	return func(in *Inputs) {
		eachRow(in.q, in.p.QShape(), func(i int, x []float32) {
			for c := range x {
				if i == row {
					x[c] = nan
				}
			}
		})
	}
}

func sinkList(x ...float32) func(in *Inputs) { return func(in *Inputs) { copy(in.sink, x) } }

func slopeList(x ...float32) func(in *Inputs) {
	return func(in *Inputs) { copy(in.features.slopes, x) }
}

// earlierList sets the LSE of earlier keys to the values x, repeated over the rows.
func earlierList(x ...float32) func(in *Inputs) {
	return func(in *Inputs) {
		for i := range in.earlierLSE {
			in.earlierLSE[i] = x[i%len(x)]
		}
	}
}
