package mutants

import (
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// featureMistakes are mistakes in softcap, ALiBi, bias, mask and sink. Each has the name of the
// trap that catches it. A trap is a test case for one mistake.
var featureMistakes = []mistake{
	// Softcap.
	{"softcap_scale", scored(func(c *call, x float32, _ pair) (s, slope float32) {
		s, slope = c.cap(x/c.by, c.p.Score.Softcap)
		return s * c.by, slope
	})},
	{"softcap_bias", scored(func(c *call, x float32, at pair) (s, slope float32) { return c.cap(x+c.biased(at), c.p.Score.Softcap) })},
	{"softcap_alibi", scored(func(c *call, x float32, at pair) (s, slope float32) { return c.cap(x-c.alibi(at), c.p.Score.Softcap) })},
	{"softcap_mask", func(s *faults) {
		s.masked = func(c *call, _ float32) (float32, bool) { return -c.p.Score.Softcap, true }
	}},
	{"softcap_sink", sunk(func(c *call, r *row, at pair) {
		s, _ := c.cap(c.logit(at.h), c.p.Score.Softcap)
		c.take(r, s, nil)
	})},
	{"softcap_gradient", capped(func(x, limit float32) (s, slope float32) { s, _ = softcap(x, limit); return s, 1 })},
	{"softcap_slope", scored(func(c *call, x float32, at pair) (s, slope float32) {
		s, _ = c.cap(x, c.p.Score.Softcap)
		s += c.biased(at)
		return s, 1 - s/c.p.Score.Softcap*s/c.p.Score.Softcap
	})},
	{"softcap_dbias", func(s *faults) { s.dbias = func(_ *call, _ pair, ds, slope float32) float32 { return ds * slope } }},
	{"softcap_huge", tanh(func(e float32) float32 { return (e - 1) / (e + 1) })},
	{"softcap_wide", tanh(func(e float32) float32 { return 1 - 2/(e+1) })},

	// ALiBi.
	{"alibi_heads", sloped(func(c *call, at pair) float32 { return c.slopeOf(at.b, c.kvHead(c.p, at.h)) })},
	{"alibi_batch", sloped(func(c *call, at pair) float32 { return c.slopeOf(0, at.h) })},
	{"alibi_repeat", sloped(func(c *call, at pair) float32 {
		all := c.args.Slopes.Float32s()
		return all[min(at.b*c.p.Heads+at.h, len(all)-1)]
	})},
	{"alibi_distance", away(func(c *call, at pair) int { return -fromDiagonal(c.p, at) })},
	{"alibi_short", away(func(_ *call, at pair) int { return abs(at.j - at.i) })},
	{"alibi_topleft", away(func(c *call, at pair) int { return abs(fromDiagonal(c.p, at) - toBottomRight(c.p)) })},
	{"alibi_shift", away(func(c *call, at pair) int { return abs(fromDiagonal(c.p, at) + c.p.Band.Shifted()) })},
	{"alibi_sign", away(func(c *call, at pair) int { return -abs(fromDiagonal(c.p, at)) })},
	{"alibi_lse", away(func(_ *call, at pair) int { return -at.j })},
	{"alibi_far", away(func(c *call, at pair) int {
		return int(half.FromBF16(half.ToBF16(float32(abs(fromDiagonal(c.p, at))))))
	})},
	{"alibi_lengths", away(func(c *call, at pair) int { return abs(fromDiagonal(c.c.Problem, at)) })},
	{"alibi_packed_row", away(func(c *call, at pair) int { at.i += c.seq.Q0; return abs(fromDiagonal(c.p, at)) })},

	// Bias.
	{"bias_scaled", scored(func(c *call, x float32, at pair) (s, slope float32) { return x + c.by*c.biased(at), 1 })},
	{"bias_twice", scored(func(c *call, x float32, at pair) (s, slope float32) { return x + 2*c.biased(at), 1 })},
	{"bias_max", func(s *faults) { s.raise = func(m, top float32) float32 { return max(m, min(top, 8)) } }},
	{"bias_inf_row", func(s *faults) { s.divisor = itself[float64] }},
	{"bias_inf_tile", func(s *faults) { s.guard = itself[float32] }},
	{"bias_type", func(s *faults) { s.bias = inTheTypeOf }},
	{"bias_f16", func(s *faults) {
		s.bias = func(_ *call, t tensor, at int) float32 {
			if t.DType() == flashkit.Float16 {
				return half.FromBF16(t.Uint16s()[at])
			}
			return value(t, at)
		}
	}},
	{"bias_band", func(s *faults) { s.hidden = func(x float32, _, _ int) (float32, bool) { return x + negInf, x != x } }},
	{"bias_heads", indexed(func(c *call, t tensor, at pair) int { at.h = c.kvHead(c.p, at.h); return indexOf(c, t, at) })},
	{"bias_batch", indexed(func(c *call, t tensor, at pair) int { at.b = 0; return indexOf(c, t, at) })},
	{"bias_row", indexed(func(c *call, t tensor, at pair) int { at.i = 0; return indexOf(c, t, at) })},
	{"bias_one_batch", indexed(repeatsNot)},
	{"bias_one_head", indexed(repeatsNot)},
	{"bias_one_row", indexed(repeatsNot)},
	{"bias_packed_row", indexed(packedRow)},
	{"bias_keys", indexed(func(c *call, t tensor, at pair) int { return t.Repeated(at.b, at.h, 0) + at.i*c.p.KVLen + at.j })},
	{"dbias_batch", biasGradient(func(_ *call, at pair, ds float32) float32 { return ds * float32(1-min(at.b, 1)) })},
	{"dbias_heads", biasGradient(func(_ *call, at pair, ds float32) float32 { return ds * float32(1-min(at.h, 1)) })},
	{"dbias_rows", biasGradient(func(_ *call, at pair, ds float32) float32 { return ds * float32(1-min(at.i, 1)) })},
	{"dbias_scale", biasGradient(func(c *call, _ pair, ds float32) float32 { return ds * c.by })},
	{"dbias_hidden", func(s *faults) { s.writes = func(_ *call, _ pair, x float64) bool { return x != 0 } }},
	{"dbias_lengths", func(s *faults) {
		s.writes = func(c *call, at pair, _ float64) bool {
			seq := c.c.Seq(at.b)
			return at.i < seq.N && at.j < seq.M
		}
	}},
	{"dbias_no_rows", func(s *faults) { s.idle = func(p problem) bool { return p.QLen == 0 && p.Score.Bias } }},
	{"dbias_no_keys", func(s *faults) {
		s.row = func(t tensor, at int) {
			if t.DType() == flashkit.Float32 {
				clear(t.Float32s()[at:][:t.Shape()[3]])
			}
		}
	}},

	// Mask.
	{"mask_inverted", func(s *faults) { s.shown = func(c *call, at pair) bool { return !maskAt(c, at) } }},
	{"mask_nan", masked(negInf)},
	{"mask_empty_row", masked(-1e30)},
	{"mask_nan_row", func(s *faults) { s.divisor = itself[float64] }},
	{"mask_finite", masked(-5e4)},
	{"mask_band", visible(func(p problem, i int) (lo, hi int) {
		if p.Score.Mask {
			p.Band = flashkit.Band{}
		}
		return p.Keys(i)
	})},
	{"mask_heads", indexed(func(c *call, t tensor, at pair) int { at.h = 0; return indexOf(c, t, at) })},
	{"mask_one_head", indexed(repeatsNot)},
	{"mask_one_row", indexed(repeatsNot)},
	{"mask_packed_row", indexed(packedRow)},
	{"mask_tile", func(s *faults) {
		s.shown = func(c *call, at pair) bool {
			first := at
			first.j = at.j / tile * tile
			return maskAt(c, at) && maskAt(c, first)
		}
	}},
	{"mask_tiles", func(s *faults) {
		s.shown = func(c *call, at pair) bool {
			for k0 := 0; k0 <= at.j; k0 += tile {
				if !someShown(c, at, k0) {
					return false
				}
			}
			return maskAt(c, at)
		}
	}},
	{"mask_first_tile", func(s *faults) {
		masked(negInf)(s)
		s.guard = itself[float32]
	}},
	{"mask_last_tile", func(s *faults) {
		s.shown = func(c *call, at pair) bool { return maskAt(c, at) || at.j >= (c.p.KVLen-1)/tile*tile }
	}},
	{"mask_no_tile", masked(-1e30)},

	// Sink.
	{"sink_scaled", sunk(func(c *call, r *row, at pair) { c.take(r, c.logit(at.h)*c.by, nil) })},
	{"sink_twice", sunk(func(c *call, r *row, at pair) { takeSink(c, r, at); takeSink(c, r, at) })},
	{"sink_lse", func(s *faults) {
		s.settle = func(c *call, r *row, at pair) { r.l -= float64(c.exp(c.logit(at.h) - r.m)) }
	}},
	{"sink_value", sunk(func(c *call, r *row, at pair) {
		c.take(r, c.logit(at.h), c.keyRows(c.args.V, c.kvHead(c.p, at.h))[0])
	})},
	{"sink_no_key", sunk(func(c *call, r *row, at pair) {
		if lo, hi := c.visible(at.i); lo < hi {
			takeSink(c, r, at)
		}
	})},
	{"sink_heads", sunk(func(c *call, r *row, at pair) { c.take(r, c.logit(c.kvHead(c.p, at.h)), nil) })},
	{"sink_max", func(s *faults) {
		s.sink = func(*call, *row, pair) {}
		s.end = func(c *call, r *row, at pair) { r.l += float64(c.exp(c.logit(at.h) - r.m)) }
	}},
	{"dsink_sign", sinkGradient(func(_ *call, _ pair, w, doDotO, dlse float32) float32 { return w * (doDotO - dlse) })},
	{"dsink_dlse", sinkGradient(func(_ *call, _ pair, w, doDotO, _ float32) float32 { return -w * doDotO })},
	{"dsink_batch", sinkGradient(func(c *call, at pair, w, doDotO, dlse float32) float32 {
		if at.b < c.c.Batch-1 {
			return 0
		}
		return w * (dlse - doDotO)
	})},
	{"dsink_no_key", sinkGradient(func(c *call, at pair, w, doDotO, dlse float32) float32 {
		if lo, hi := c.visible(at.i); lo == hi {
			return 0
		}
		return w * (dlse - doDotO)
	})},
}

// scored returns a mistake that replaces the step from scaled dot product to score.
func scored(score func(c *call, x float32, at pair) (s, slope float32)) func(*faults) {
	return func(s *faults) { s.score = score }
}

func capped(to func(x, limit float32) (s, slope float32)) func(*faults) {
	return func(s *faults) { s.cap = to }
}

// tanh returns a mistake that computes the softcap's tanh(y) as of(e), where e is exp(2y) in
// float32.
func tanh(of func(e float32) float32) func(*faults) {
	return capped(func(x, limit float32) (s, slope float32) {
		if limit == 0 {
			return x, 1
		}
		t := of(float32(math.Exp(float64(2 * x / limit))))
		return limit * t, 1 - t*t
	})
}

func sloped(steep func(c *call, at pair) float32) func(*faults) {
	return func(s *faults) { s.steep = steep }
}

func away(distance func(c *call, at pair) int) func(*faults) {
	return func(s *faults) { s.distance = distance }
}

// indexed returns a mistake that replaces the index of a pair in bias and mask. The index stays
// within the memory.
func indexed(index func(c *call, t tensor, at pair) int) func(*faults) {
	return func(s *faults) {
		s.index = func(c *call, t tensor, at pair) int { return min(index(c, t, at), t.Len()-1) }
	}
}

func repeatsNot(_ *call, t tensor, at pair) int { return t.Offset(at.b, at.h, at.i) + at.j }

func packedRow(c *call, t tensor, at pair) int {
	at.i += c.seq.Q0
	return indexOf(c, t, at)
}

// inTheTypeOf returns element `at` of a bias. It misreads a float32 bias in a 16-bit problem: it
// takes each half of a float32 for a number of the problem's type.
func inTheTypeOf(c *call, t tensor, at int) float32 {
	if t.DType() != flashkit.Float32 || c.p.DType == flashkit.Float32 {
		return value(t, at)
	}
	halves := math.Float32bits(t.Float32s()[at/2])
	x := uint16(halves >> (16 * (at % 2)))
	if c.p.DType == flashkit.Float16 {
		return half.FromF16(x)
	}
	return half.FromBF16(x)
}

func biasGradient(of func(c *call, at pair, ds float32) float32) func(*faults) {
	return func(s *faults) {
		s.dbias = func(c *call, at pair, ds, _ float32) float32 { return of(c, at, ds) }
	}
}

// masked returns a mistake that gives the score x to all pairs that the mask hides.
func masked(x float32) func(*faults) {
	return func(s *faults) { s.masked = func(*call, float32) (float32, bool) { return x, true } }
}

// someShown reports whether the mask shows any key of the tile that begins at k0. The batch, head
// and row are the ones in the pair `at`.
func someShown(c *call, at pair, k0 int) bool {
	for at.j = k0; at.j < min(k0+tile, c.p.KVLen); at.j++ {
		if maskAt(c, at) {
			return true
		}
	}
	return false
}

func sunk(sink func(c *call, r *row, at pair)) func(*faults) {
	return func(s *faults) { s.sink = sink }
}

func sinkGradient(of func(c *call, at pair, w, doDotO, dlse float32) float32) func(*faults) {
	return func(s *faults) { s.dsink = of }
}

// powerOfTwo returns the largest power of two up to n.
func powerOfTwo(n int) int { return 1 << (bits.Len(uint(n)) - 1) }
