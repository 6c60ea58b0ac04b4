package mutants

import "math"

// withEarlierMax returns the row maximum: the largest score of the row's keys, or the larger maximum
// over the earlier keys. It is NaN if a score is NaN or +Inf.
func withEarlierMax(c *call, r *row, at pair) float32 {
	top := r.top
	if top > math.MaxFloat32 {
		top = float32(math.NaN())
	}
	if c.p.Carry {
		if lse, _ := c.earlier(at); lse != negInf {
			top = max(top, c.earlierMax(at))
		}
	}
	return top
}

func (c *call) earlierMax(at pair) float32 {
	return c.read(c.args.RowMax, c.seq.QBatch, at.h, c.seq.Q0+at.i, 0)
}

// statsMistakes are mistakes in the statistics of rows.
var statsMistakes = []mistake{
	{"rowmax_unscaled", peaked(func(c *call, r *row, _ pair) float32 { return r.top / c.by })},
	{"rowmax_log2", peaked(func(_ *call, r *row, _ pair) float32 { return r.top * math.Log2E })},
	{"rowmax_softcap", peaked(func(c *call, r *row, _ pair) float32 {
		cap := float64(c.p.Score.Softcap)
		return float32(cap * math.Atanh(float64(r.top)/cap))
	})},
	{"rowmax_tile", func(s *faults) { s.higher = func(_ *row, top float32) float32 { return top } }},
	{"rowmax_first_tile", func(s *faults) {
		s.higher = func(r *row, top float32) float32 {
			if r.top > negInf {
				return r.top
			}
			return top
		}
	}},
	{"rowmax_sink", peaked(func(_ *call, r *row, _ pair) float32 { return r.m })},
	{"rowmax_lse", peaked(func(c *call, r *row, _ pair) float32 { return c.lse(r.m, r.l) })},
	{"rowmax_no_key", peaked(func(_ *call, r *row, _ pair) float32 { return max(r.top, -math.MaxFloat32) })},
	{"rowmax_band", peaked(func(c *call, _ *row, at pair) float32 { return c.largest(at) })},
	{"rowmax_nan", func(s *faults) {
		s.higher = func(r *row, top float32) float32 {
			if top > r.top {
				return top
			}
			return r.top
		}
	}},
	{"rowmax_heads", peaked(func(c *call, _ *row, at pair) float32 {
		at.h = c.kvHead(c.p, at.h)
		return c.largest(at)
	})},
	{"rowmax_padding", padding("RowMax")},
	{"rowmax_carry", peaked(func(_ *call, r *row, _ pair) float32 { return r.top })},
	{"rowmax_carry_lse", peaked(func(c *call, r *row, at pair) float32 {
		lse, _ := c.earlier(at)
		return max(r.top, lse)
	})},
	{"rowmax_carry_nothing", peaked(func(c *call, r *row, at pair) float32 { return max(r.top, c.earlierMax(at)) })},
}

// largest returns the largest scaled dot product of a row and any key.
func (c *call) largest(at pair) float32 {
	top, q := negInf, c.queries(c.args.Q, at.h)[at.i]
	for _, k := range c.keyRows(c.args.K, c.kvHead(c.p, at.h)) {
		top = max(top, dot(q, k)*c.by)
	}
	return top
}

// peaked returns a mistake that replaces the row maximum that is written.
func peaked(peak func(c *call, r *row, at pair) float32) func(*faults) {
	return func(s *faults) { s.peak = peak }
}
