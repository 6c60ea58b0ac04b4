package mutants

import "math"

// weightOf returns the weight of a score, before dropout.
func weightOf(c *call, r *row, s float32, _ pair) float64 {
	if s == negInf {
		return 0
	}
	return float64(c.exp(s-c.guard(r.m))) / r.l
}

// weighKeys adds the weights of a finished row to the sums of its keys.
func (c *call) weighKeys(mass []float64, r *row, at pair, q []float32, k [][]float32, lo, hi int) {
	if !c.p.KeyMass {
		return
	}
	for k0, end := c.visits(at.i, lo, hi); k0 < end; k0 += tile {
		js, s := c.scores(at, q, k, k0, lo, hi)
		for x, j := range js {
			at.j = j
			mass[j] += c.mass(c, r, s[x], at)
		}
	}
}

// storeMass writes the sums of the keys of query head h, and 0 beyond the end of the sequence.
func (c *call) storeMass(mass []float64, h int) {
	if !c.p.KeyMass {
		return
	}
	for j := range c.massEnds(c) {
		sum := 0.0
		if j < len(mass) {
			sum = mass[j]
		}
		to, key := c.massOf(c, h, j)
		c.write(c.args.KeyMass, c.b, to, 0, key, float32(sum))
	}
}

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

	{"keymass_running", massed(func(c *call, r *row, s float32, at pair) float64 {
		top, q, keys := s, c.queries(c.args.Q, at.h)[at.i], c.keyRows(c.args.K, c.kvHead(c.p, at.h))
		for _, k := range keys[:at.j/tile*tile] {
			top = max(top, dot(q, k)*c.by)
		}
		return math.Exp(float64(s-top)) / r.l
	})},
	{"keymass_sum", massed(func(_ *call, r *row, s float32, _ pair) float64 { return math.Exp(float64(s - r.m)) })},
	{"keymass_mean", massed(func(c *call, r *row, s float32, at pair) float64 { return weightOf(c, r, s, at) / float64(c.p.QLen) })},
	{"keymass_last_row", massed(func(c *call, r *row, s float32, at pair) float64 {
		return weightOf(c, r, s, at) * float64(only(at.i == c.p.QLen-1, 1))
	})},
	{"keymass_dropout", massed(func(c *call, r *row, s float32, at pair) float64 {
		return weightOf(c, r, s, at) * float64(c.keep(c, at))
	})},
	{"keymass_sink", massed(func(c *call, r *row, s float32, at pair) float64 {
		return weightOf(c, r, s, at) * r.l / (r.l - math.Exp(float64(c.logit(at.h)-r.m)))
	})},
	{"keymass_carry", massed(func(c *call, r *row, s float32, at pair) float64 {
		lse, _ := c.earlier(at)
		return weightOf(c, r, s, at) * r.l / (r.l - math.Exp(float64(lse-r.m)))
	})},
	{"keymass_heads", func(s *faults) { s.massOf = func(c *call, h, j int) (int, int) { return c.kvHead(c.p, h), j } }},
	{"keymass_packed_key", func(s *faults) {
		s.massOf = func(c *call, h, j int) (int, int) { return h, (j + c.seq.K0) % c.c.KVLen }
	}},
	{"keymass_page", func(s *faults) {
		s.massOf = func(c *call, h, j int) (int, int) {
			if c.p.Page != 0 {
				page, at := c.page(c.c, c.b, min(j, c.p.KVLen-1))
				return h, (page*c.p.Page + at) % c.c.KVLen
			}
			return h, j
		}
	}},
	{"keymass_padding", func(s *faults) { s.massEnds = func(c *call) int { return c.p.KVLen } }},
	{"keymass_empty_row", massed(func(c *call, r *row, s float32, at pair) float64 { return math.Exp(float64(s-r.m)) / r.l })},
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

// massed returns a mistake that replaces the addend of a weight to the sum of its key.
func massed(mass func(c *call, r *row, s float32, at pair) float64) func(*faults) {
	return func(s *faults) { s.mass = mass }
}
