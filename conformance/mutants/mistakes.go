package mutants

import (
	"errors"
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// denseMistakes are mistakes in attention without features. Each has the name of the trap that
// catches it. A trap is a test case for one mistake.
var denseMistakes = []mistake{
	// Alignment of the causal mask. Most of these mistakes give row i the keys of row i+n, for some n.
	{"causal_short", moved(func(p problem) int { return -only(!p.Band.IsTopLeft(), max(0, p.KVLen-p.QLen)) })},
	{"causal_one_taller", seen(func(i, lo, hi int) (int, int) { return lo, max(hi, 1-i) })}, // only row 0 changes: it also sees key 0
	{"causal_tall", seen(func(_, lo, hi int) (int, int) { return lo, max(hi, 1) })},
	{"causal_one_row", moved(func(p problem) int { return -only(p.QLen == 1, p.KVLen-1) })},
	{"topleft_short", moved(func(p problem) int { return max(0, toBottomRight(p)) })},
	{"topleft_tall", moved(func(p problem) int { return min(0, toBottomRight(p)) })},

	// Sliding windows.
	{"window_left", sides(func(_, right int) (int, int) { return flashkit.Unlimited, right })},
	{"window_right", sides(func(left, right int) (int, int) { return left, min(right, 0) })},
	{"window_both", sides(func(left, right int) (int, int) { return right, left })},
	{"window_edge", sides(func(left, right int) (int, int) { return left - only(left > 0, 1), right })},
	{"window_diagonal", sides(func(left, right int) (int, int) { return left + only(left == 0, flashkit.Unlimited), right })},
	{"window_short", moved(func(p problem) int { return -only(p.Band.Left() >= 0, max(0, p.KVLen-p.QLen)) })},
	{"window_topleft", visible(func(p problem, i int) (lo, hi int) {
		lo, _ = p.Keys(i + toBottomRight(p))
		_, hi = p.Keys(i)
		return lo, hi
	})},
	{"window_empty_tail", func(s *faults) {
		s.begin = func(r *row, lo, hi int) {
			if lo < hi {
				r.reset(negInf)
			}
		}
	}},
	{"rows_past_keys", visible(func(p problem, i int) (lo, hi int) {
		lo, hi = p.Keys(i)
		return lo - only(i >= 64 && lo == p.KVLen, 1), hi
	})},
	{"window_wide", func(s *faults) { // the last of each 64 rows chooses the first tile for all of them
		s.first = func(p problem, i, _ int) int { lo, _ := p.Keys(min(i|63, p.QLen-1)); return lo }
	}},

	// Missing rows, keys and batches.
	{"empty_row", func(s *faults) { s.divisor = itself[float64] }},
	{"empty_row_lse", func(s *faults) {
		s.lse = func(m float32, l float64) float32 { return max(m, -math.MaxFloat32) + float32(math.Log(max(l, 1))) }
	}},
	{"no_keys", func(s *faults) { s.idle = func(p problem) bool { return p.KVLen == 0 } }},
	{"no_queries", func(s *faults) { s.idle = func(p problem) bool { return p.QLen == 0 } }},
	{"no_batch", func(s *faults) { s.refuse = func(p problem, _ tensor) error { return refusedIf[p.Batch == 0] } }}, // like a CUDA kernel, which cannot launch a grid without blocks
	{"one_key", seen(func(_, lo, hi int) (int, int) { return lo, hi - 1 })},

	// These mistakes do not skip keys outside the band. They set such a key's score to -Inf, or add
	// -Inf to the score.
	{"nan_behind_mask", func(s *faults) { s.hidden = func(_ float32, j, lo int) (float32, bool) { return negInf, j >= lo } }},
	{"inf_behind_mask", func(s *faults) { s.hidden = func(x float32, _, _ int) (float32, bool) { return x + negInf, true } }},
	{"nan_before_window", func(s *faults) { s.hidden = func(_ float32, j, lo int) (float32, bool) { return negInf, j < lo } }},

	// The running maximum and sum.
	{"huge_scores", func(s *faults) { s.raise = func(_, _ float32) float32 { return 0 } }},
	{"huge_negative_scores", func(s *faults) { s.begin = func(r *row, _, _ int) { r.reset(0) } }},
	{"finite_sentinel", func(s *faults) { s.hidden = func(float32, int, int) (float32, bool) { return -5e4, true } }},
	{"rising_max", func(s *faults) { s.rescaleO = one }},
	{"rising_max_sum", func(s *faults) { s.rescaleL = one }},
	{"falling_max", func(s *faults) { // the mistake has no effect unless sums overflow, as float32 sums do
		s.raise, s.sumKeys = func(_, top float32) float32 { return top }, toFloat32
	}},
	{"far_below_max", func(s *faults) { s.exp = expByBits }},
	{"very_negative_lse", func(s *faults) { s.unused = func(n int) []float32 { return make([]float32, max(0, n)) } }},
	{"last_key", func(s *faults) { s.keyEnd = whole(tile) }},
	{"long_keys", func(s *faults) { s.keyEnd = upTo(512) }},
	{"tile_tails", func(s *faults) { s.rowEnd = whole(64) }},

	// Heads and batches.
	{"batch_heads", addressed(func(s, _ [4]int, b, h, r int) int { return h*s[0] + b*s[1] + r*s[2] })},
	{"gqa_1", func(s *faults) { s.share = clearRows }},
	{"gqa_2", func(s *faults) { s.kvHead = func(p problem, h int) int { return h % p.KVHeads } }},
	{"gqa_3", func(s *faults) { s.kvHead = func(p problem, h int) int { return min(h/p.KVHeads, p.KVHeads-1) } }},
	{"gqa_5", func(s *faults) {
		s.kvHead = func(p problem, h int) int { return min(h>>(bits.Len(uint(p.Heads/p.KVHeads))-1), p.KVHeads-1) }
	}},
	{"gqa_7", func(s *faults) { s.kvHead = func(problem, int) int { return 0 } }},

	// Head dims.
	{"dim_1", scaled(func(p problem) int { return (p.Dim + 7) / 8 * 8 })},
	{"dim_3", func(s *faults) { s.dim = whole(2) }},
	{"dim_40", func(s *faults) { s.dim = whole(16) }},
	{"dim_72", func(s *faults) { s.dim = whole(64) }},
	{"dim_80", func(s *faults) { s.dim = whole(32) }},
	{"dim_96", scaled(func(p problem) int { return 1 << bits.Len(uint(p.Dim-1)) })},
	{"dim_256", func(s *faults) { s.dim = func(d int) int { return int(uint8(d)) } }},
	{"dim_257", func(s *faults) { s.dim = upTo(256) }},
	{"dim_512", func(s *faults) { s.dim = upTo(511) }},
	{"vdim_smaller", scaled(func(p problem) int { return p.VDim })},
	{"vdim_larger", func(s *faults) { s.vdim = func(p problem) int { return min(p.Dim, p.VDim) } }},
	{"v_columns", func(s *faults) { s.values = byColumns }},
	{"scale_given", func(s *faults) { s.scale = func(p problem) float32 { p.Scale = 0; return float32(p.SoftmaxScale()) } }},

	// Strides. stride_zero treats a stride of 0 as unset.
	{"stride_zero", addressed(func(s, n [4]int, b, h, r int) int {
		return b*(s[0]+only(s[0] == 0, n[1]*n[2]*n[3])) + h*(s[1]+only(s[1] == 0, n[2]*n[3])) + r*s[2]
	})},
	{"row_gaps", addressed(func(s, n [4]int, b, h, r int) int { return b*s[0] + h*s[1] + r*n[3] })},
	{"bshd", addressed(func(s, n [4]int, b, h, r int) int { return b*s[0] + (h*n[2]+r)*n[3] })},
	{"size_one_strides", func(s *faults) { s.refuse = func(_ problem, q tensor) error { return refusedIf[q.Strides()[2] < 0] } }},

	// Storage and the backward pass.
	{"f16_large", func(s *faults) { s.sum = keptInF16 }},
	{"delta", func(s *faults) { s.delta = func(_ *call, _, dlse float32) float32 { return -dlse } }},
	{"dk_scale", func(s *faults) { s.dkScale = one }},
	{"dlse", func(s *faults) { s.delta = func(_ *call, doDotO, _ float32) float32 { return doDotO } }},
}

// longMistakes are mistakes in problems with many rows or keys. Each has the name of the case that
// catches it, a case of conformance.Long.
var longMistakes = []mistake{
	{"long_rows", func(s *faults) { s.sumKeys = toFloat32 }},
	{"long_columns", func(s *faults) { s.sumRows = toFloat32 }},
	{"long_rows_bias", func(s *faults) { s.sumKeys = toFloat32 }},
	{"long_rows_alibi", away(func(c *call, at pair) int { return int(int16(abs(fromDiagonal(c.p, at)))) })},
	{"long_columns_bias", func(s *faults) { s.sumMore = toFloat32 }},
	{"long_columns_sink", func(s *faults) { s.sumMore = toFloat32 }},
	{"long_rows_last", func(s *faults) { s.keyEnd = func(m int) int { return m - only(m >= 4096, 1) } }},
	{"long_rows_tail", func(s *faults) { s.keyEnd = func(m int) int { return m - only(m >= 4096, m%128) } }},
	{"long_rows_chunks", func(s *faults) { s.keyEnd = upTo(128 * 4096) }},
	{"long_columns_dropout", counted(func(_ *call, x *[4]uint32, _ pair) { x[1] &= 0xffff })},

	{"sum_dbias_rows", func(s *faults) { s.sumMore = toFloat32 }},
	{"sum_dbias_heads", func(s *faults) { s.sumMore = toFloat32 }},
	{"sum_dbias_sequences", func(s *faults) { s.sumMore = toFloat32 }},
	{"sum_dbias_all", func(s *faults) { s.sumMore = toFloat32 }},
	{"sum_dsink_rows", func(s *faults) { s.sumMore = toFloat32 }},
	{"sum_dsink_sequences", func(s *faults) { s.sumMore = toFloat32 }},
}

// visible returns a mistake that replaces the range of keys that row i sees.
func visible(keys func(p problem, i int) (lo, hi int)) func(*faults) {
	return func(s *faults) { s.keys = keys }
}

// moved returns a mistake that moves the band to the right by the number of keys by(p). If by(p) is
// negative, the band moves to the left.
func moved(by func(p problem) int) func(*faults) {
	return visible(func(p problem, i int) (lo, hi int) { return p.Keys(i + by(p)) })
}

// toBottomRight returns the distance from a top-left band's diagonal to the bottom-right diagonal.
// The distance is 0 for other bands.
func toBottomRight(p problem) int { return only(p.Band.IsTopLeft(), p.KVLen-p.QLen) }

// seen returns a mistake that changes the range of keys that row i sees.
func seen(change func(i, lo, hi int) (int, int)) func(*faults) {
	return visible(func(p problem, i int) (int, int) { lo, hi := p.Keys(i); return change(i, lo, hi) })
}

// sides returns a mistake that changes how many keys before and after the diagonal a row sees.
func sides(change func(left, right int) (int, int)) func(*faults) {
	return visible(func(p problem, i int) (lo, hi int) {
		back := toBottomRight(p)
		p.Band = flashkit.Window(change(p.Band.Left(), p.Band.Right()))
		return p.Keys(i - back)
	})
}

// addressed returns a mistake that computes offsets from the strides s and the shape n. The offsets
// stay within the tensor.
func addressed(at func(s, n [4]int, b, h, r int) int) func(*faults) {
	return func(s *faults) {
		s.offset = func(t tensor, b, h, r int) int {
			return min(at(t.Strides(), t.Shape(), b, h, r), t.Len()-t.Shape()[3])
		}
	}
}

// scaled returns a mistake whose default scale is 1/sqrt(dim(p)) instead of 1/sqrt(Dim).
func scaled(dim func(p problem) int) func(*faults) {
	return func(s *faults) {
		s.scale = func(p problem) float32 { p.Dim = dim(p); return float32(p.SoftmaxScale()) }
	}
}

// only returns n if condition holds, else 0.
func only(condition bool, n int) int {
	if condition {
		return n
	}
	return 0
}

// whole returns a function that rounds a count down to a multiple of n, unless the count is at most
// n.
func whole(n int) func(int) int { return func(x int) int { return x - only(x > n, x%n) } }

func upTo(limit int) func(int) int { return func(x int) int { return min(x, limit) } }

func one(float32) float32 { return 1 }

var refusedIf = map[bool]error{true: errors.New("refused")}

func clearRows(x [][]float64) {
	for j := range x {
		clear(x[j])
	}
}

func byColumns(v [][]float32) [][]float32 {
	t := make([][]float32, len(v))
	for j := range v {
		for c := range v[j] {
			t[j] = append(t[j], v[c%len(v)][j%len(v[j])])
		}
	}
	return t
}

// expByBits computes exp(x). It writes the exponent bits of the float32 without a range check.
func expByBits(x float32) float32 {
	y := float64(max(x, -math.MaxFloat32)) * math.Log2E
	n := math.Floor(y)
	return math.Float32frombits(uint32(int64(n)+127)<<23) * float32(math.Exp2(y-n))
}

func toFloat32(x float64) float64 { return float64(float32(x)) }

func keptInF16(t flashkit.DType, x float32) float32 {
	if t == flashkit.Float16 {
		return roundedTo(t, x)
	}
	return x
}

func roundedTo(t flashkit.DType, x float32) float32 {
	switch t {
	case flashkit.Float16:
		return half.FromF16(half.ToF16(x))
	case flashkit.BFloat16:
		return half.FromBF16(half.ToBF16(x))
	}
	return x
}
