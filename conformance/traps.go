package conformance

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// A trap is a small case that catches one mistake. Package mutants has a kernel with the trap's
// name that makes this mistake. That kernel must fail the trap.
type trap struct {
	name, catches, problem string

	fill   func(in *Inputs)
	layout layout
	dlse   bool
	types  []flashkit.DType // types that represent the inputs exactly; nil for all
}

// traps is the table of traps for mistakes in attention without features.
var traps = []trap{
	// Alignment of the causal mask for unequal numbers of rows and keys.
	{name: "causal_short", catches: "a causal mask aligned to the top left when N < M", problem: "b1-h1-g1-n3-m19-d8-f32-causal"},
	{name: "causal_one_taller", catches: "a first row that is given a key when N = M+1", problem: "b1-h2-g2-n8-m7-d8-f32-causal"},
	{name: "causal_tall", catches: "a causal mask that lets every row see at least one key when N > M", problem: "b1-h1-g1-n19-m3-d8-f32-causal"},
	{name: "causal_one_row", catches: "a single query row that sees one key only", problem: "b1-h2-g2-n1-m9-d8-f32-causal"},
	{name: "topleft_short", catches: "top-left alignment ignored when N < M", problem: "b1-h1-g1-n3-m19-d8-f32-causal-topleft"},
	{name: "topleft_tall", catches: "top-left alignment ignored when N > M", problem: "b1-h1-g1-n19-m5-d8-f32-causal-topleft"},

	// Sliding windows.
	{name: "window_left", catches: "the left side of a window ignored", problem: "b1-h1-g1-n20-m20-d8-f32-window3.0"},
	{name: "window_right", catches: "the right side of a window taken for causal", problem: "b1-h1-g1-n20-m20-d8-f32-windowinf.2"},
	{name: "window_both", catches: "the sides of a window exchanged", problem: "b1-h1-g1-n20-m20-d8-f32-window2.5"},
	{name: "window_edge", catches: "a window one key too narrow on the left", problem: "b1-h1-g1-n9-m9-d8-f32-window1.1"},
	{name: "window_diagonal", catches: "a window of 0 taken for no window", problem: "b1-h1-g1-n9-m9-d8-f32-window0.0"},
	{name: "window_short", catches: "a window placed by the row's number alone when N < M", problem: "b1-h1-g1-n5-m37-d8-f32-window4.2"},
	{name: "window_topleft", catches: "the left side of a top-left window aligned to the bottom right", problem: "b1-h1-g1-n5-m17-d8-f32-window2.1-topleft"},
	{name: "window_empty_tail", catches: "rows past the last key left with the result of an earlier row", problem: "b1-h2-g2-n17-m5-d8-f32-window1.0-topleft"},
	{name: "rows_past_keys", catches: "a whole tile of rows past the last key that is given that key", problem: "b1-h2-g1-n200-m5-d8-f32-window1.0-topleft"},
	{name: "window_wide", catches: "a tile of a window skipped as if it were hidden", problem: "b1-h1-g1-n200-m200-d8-f32-window70.3"},

	// Missing rows, keys and batches.
	{name: "empty_row", catches: "NaN from a row that sees no key", problem: "b1-h1-g1-n6-m3-d8-f32-causal"},
	{name: "empty_row_lse", catches: "a finite LSE for a row that sees no key", problem: "b2-h1-g1-n7-m2-d8-f32-causal"},
	{name: "no_keys", catches: "outputs left unwritten when there is no key", problem: "b1-h2-g1-n5-m0-d8-f32"},
	{name: "no_queries", catches: "dK and dV left unwritten when there is no query row", problem: "b1-h2-g1-n0-m5-d8-f32"},
	{name: "no_batch", catches: "a failure when there is no batch", problem: "b0-h2-g1-n5-m5-d8-f32"},
	{name: "one_key", catches: "a loop over keys that stops one early", problem: "b2-h2-g2-n3-m1-d8-f32"},

	// Keys that no row sees have no influence, not even if they hold NaN.
	{name: "nan_behind_mask", catches: "0 * NaN from a key that no row sees", problem: "b1-h2-g1-n5-m21-d8-f32-causal-topleft", fill: hide(nan)},
	{name: "inf_behind_mask", catches: "Inf from a key that no row sees", problem: "b1-h2-g1-n5-m21-d8-f32-causal-topleft", fill: hide(inf)},
	{name: "nan_before_window", catches: "0 * NaN from a key left of every window", problem: "b1-h1-g1-n5-m70-d8-f32-window3.0", fill: hide(nan)},

	// The running maximum and sum.
	{name: "huge_scores", catches: "exp overflowing for lack of the maximum", problem: "b1-h1-g1-n3-m40-d8-f32", fill: steer(64, level(4416))},
	{name: "huge_negative_scores", catches: "a running maximum that starts at 0", problem: "b1-h1-g1-n3-m40-d8-f32", fill: steer(64, level(-4416))},
	{name: "finite_sentinel", catches: "a masked score of -5e4 outranking real ones", problem: "b1-h1-g1-n9-m40-d8-f32-causal", fill: steer(64, level(-4416))},
	{name: "rising_max", catches: "the accumulator not rescaled when the maximum grows", problem: "b1-h1-g1-n2-m260-d8-f32", fill: steer(4, func(j int) float32 { return float32(j / 4) })},
	{name: "rising_max_sum", catches: "the sum not rescaled when the maximum grows", problem: "b1-h1-g1-n3-m150-d8-f32", fill: steer(4, func(j int) float32 { return float32(j/8) / 2 })},
	{name: "falling_max", catches: "a maximum taken from the tile alone", problem: "b1-h1-g1-n2-m260-d8-f32", fill: steer(4, func(j int) float32 { return -4 * float32(j/4) })},
	{name: "far_below_max", catches: "exp of very negative numbers wrapping round", problem: "b1-h1-g1-n3-m20-d8-f32", fill: steer(64, func(j int) float32 { return -float32(j * 4) })},
	{name: "very_negative_lse", catches: "padding keys scored 0 beside scores of -1000 at a length that fills no tile", problem: "b1-h2-g2-n37-m83-d8-f32", fill: steer(64, level(-44))},
	{name: "last_key", catches: "the tail of the last tile dropped", problem: "b1-h1-g1-n5-m67-d8-f32", fill: steer(4, func(j int) float32 { return float32(j / 66 * 8) })},
	{name: "long_keys", catches: "keys beyond 512 ignored", problem: "b1-h1-g1-n2-m1000-d8-f32"},
	{name: "tile_tails", catches: "rows of a last, short tile not computed", problem: "b1-h1-g1-n65-m129-d16-f32-causal"},

	// Heads and batches.
	{name: "batch_heads", catches: "batch and head exchanged", problem: "b3-h5-g5-n4-m6-d8-f32"},
	{name: "gqa_1", catches: "dK and dV of one query head instead of the sum over the group", problem: "b2-h4-g1-n3-m5-d8-f32"},
	{name: "gqa_2", catches: "query head h reading key head h mod G", problem: "b2-h6-g2-n3-m5-d8-f32-causal"},
	{name: "gqa_3", catches: "query head h reading key head h / G", problem: "b1-h12-g3-n3-m5-d8-f32"},
	{name: "gqa_5", catches: "a group size rounded down to a power of two", problem: "b1-h15-g5-n3-m5-d8-f32"},
	{name: "gqa_7", catches: "every query head reading the first key head", problem: "b1-h14-g7-n3-m5-d8-f32"},

	// Head dims.
	{name: "dim_1", catches: "the scale of a padded head dim", problem: "b1-h1-g1-n3-m5-d1-f32"},
	{name: "dim_3", catches: "elements beyond a multiple of 2 dropped", problem: "b1-h1-g1-n3-m5-d3-f32"},
	{name: "dim_40", catches: "elements beyond a multiple of 16 dropped", problem: "b1-h2-g2-n5-m9-d40-f32"},
	{name: "dim_72", catches: "elements beyond a multiple of 64 dropped", problem: "b1-h2-g2-n5-m9-d72-f32"},
	{name: "dim_80", catches: "elements beyond a multiple of 32 dropped", problem: "b1-h2-g2-n5-m9-d80-f32"},
	{name: "dim_96", catches: "a head dim rounded up to a power of two in the scale", problem: "b1-h2-g2-n5-m9-d96-f32"},
	{name: "dim_256", catches: "a head dim that wraps at 256", problem: "b1-h1-g1-n3-m9-d256-f32"},
	{name: "dim_257", catches: "elements beyond 256 dropped", problem: "b1-h1-g1-n3-m9-d257-f32"},
	{name: "dim_512", catches: "elements beyond 511 dropped", problem: "b1-h1-g1-n3-m9-d512-f32"},
	{name: "vdim_smaller", catches: "a scale taken from DV", problem: "b1-h2-g2-n5-m9-d64-dv16-f32"},
	{name: "vdim_larger", catches: "elements of O beyond D not computed", problem: "b1-h2-g2-n5-m9-d8-dv24-f32"},
	{name: "v_columns", catches: "V read by columns", problem: "b1-h1-g1-n4-m8-d8-f32"},
	{name: "scale_given", catches: "a given scale ignored", problem: "b1-h2-g2-n5-m9-d8-f32-scale0.25"},

	// Strides.
	{name: "stride_zero", catches: "the strides of expanded keys and values ignored", problem: "b2-h4-g4-n5-m9-d8-f32", fill: repeat, layout: expanded},
	{name: "row_gaps", catches: "rows with gaps taken for dense", problem: "b2-h2-g2-n5-m9-d8-f32", layout: gaps},
	{name: "bshd", catches: "the BSHD layout taken for BHSD", problem: "b2-h3-g3-n5-m9-d8-f32", layout: bshd},
	{name: "size_one_strides", catches: "the stride of a dimension of size 1 relied on", problem: "b1-h1-g1-n1-m9-d8-f32", layout: oddStrides},

	// Storage and the backward pass.
	{name: "f16_large", catches: "sums kept in f16 overflowing at values of 1e4", problem: "b1-h1-g1-n3-m9-d8-f32-scale0.0009765625", fill: large},
	{name: "delta", catches: "delta left out of the score gradient", problem: "b1-h2-g2-n5-m9-d8-f32"},
	{name: "dk_scale", catches: "the scale left out of dK", problem: "b1-h2-g2-n5-m9-d16-f32"},
	{name: "dlse", catches: "the gradient of LSE ignored", problem: "b1-h2-g1-n5-m9-d8-f32-causal", dlse: true},
}

// large sets V and K to values near 1e4. The products of Q and K exceed the largest f16. A small
// scale keeps the scores small, and a small dO keeps the gradients within f16.
func large(in *Inputs) {
	for i := range in.v {
		in.v[i] = float32(math.Copysign(9984, float64(in.v[i]))) + 64*float32(i%3)
	}
	for i := range in.do {
		in.do[i] /= 256
	}
	steer(64, func(j int) float32 { return 9984 - 64*float32(j%5) })(in)
}
