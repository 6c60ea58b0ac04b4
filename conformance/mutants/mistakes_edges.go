package mutants

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// edgeMistakes are mistakes at the edges of tiles and bands, among others. Each has the name of the
// trap that catches it. A trap is a test case for one mistake.
var edgeMistakes = []mistake{
	{"edge_nan_bias", func(s *faults) {
		s.masked = func(_ *call, x float32) (float32, bool) { return x + negInf, x != x }
	}},
	{"edge_nan_between", func(s *faults) {
		s.shown = func(c *call, at pair) bool { at.j = at.j / tile * tile; return maskAt(c, at) }
	}},
	{"edge_band_right", withMask(func(p problem, lo, hi int) (int, int) {
		return lo, only(lo < hi, min((hi+15)/16*16, p.KVLen))
	})},
	{"edge_band_left", withMask(func(_ problem, lo, hi int) (int, int) { return lo / 16 * 16, hi })},
	{"edge_mask_row", shown(func(c *call, at pair) bool {
		at.i -= only(at.i == c.p.QLen-1, (c.p.QLen-1)%2^1)
		at.i = max(at.i, 0)
		return maskAt(c, at)
	})},
	{"edge_mask_32", shown(func(c *call, at pair) bool { return maskAt(c, at) || at.j%32 == 31 })},
	{"edge_mask_64", shown(func(c *call, at pair) bool {
		at.j -= only(at.j/64 == 1, 64)
		return maskAt(c, at)
	})},
	{"edge_mask_keys", shown(func(c *call, at pair) bool {
		return maskAt(c, at) || at.j%128 == 127 && c.args.Mask.Shape()[2] == 1
	})},
	{"edge_mask_odd", shown(func(c *call, at pair) bool {
		other := at
		other.j = min(at.j^1, c.p.KVLen-1)
		return maskAt(c, at) || maskAt(c, other)
	})},
	{"edge_band_odd", seen(func(i, lo, hi int) (int, int) { return lo, hi + only(i == 16, hi%2) })},
	{"edge_empty_rows", func(s *faults) {
		s.end = func(c *call, r *row, at pair) {
			if lo, hi := c.visible(at.i); lo == hi {
				r.o[0] += 0 * float64(c.read(c.args.Q, c.seq.QBatch, at.h, c.seq.Q0+at.i, 0))
			}
		}
	}},
	{"edge_masked_rows", func(s *faults) { s.masked = func(_ *call, x float32) (float32, bool) { return x + negInf, true } }},

	{"edge_dbias_rows", unwritten(func(c *call, at pair) bool { lo, hi := c.visible(at.i); return lo == hi })},
	{"edge_dbias_keys", unwritten(func(c *call, at pair) bool { return at.j >= c.p.QLen })},
	{"edge_dbias_shared", unwritten(func(c *call, at pair) bool {
		lo, hi := c.visible(at.i)
		return lo == hi && c.args.Bias.Shape()[0] == 1
	})},
	{"edge_dbias_columns", unwritten(func(c *call, at pair) bool { return at.j >= c.p.QLen && c.args.Bias.Shape()[2] == 1 })},
	{"edge_dsink", sinkGradient(func(c *call, at pair, w, doDotO, dlse float32) float32 {
		if lo, hi := c.visible(at.i); lo == hi && at.i >= 64 {
			return 0
		}
		return w * (dlse - doDotO)
	})},

	{"dropout_sequences", counted(func(_ *call, x *[4]uint32, _ pair) { x[3] &= 0xff })},
	{"dropout_heads_33", counted(func(_ *call, x *[4]uint32, _ pair) { x[2] &= 31 })},
	{"dropout_head_16", counted(func(_ *call, x *[4]uint32, _ pair) { x[2] &= 0xffff })},
	{"dropout_row_16", counted(func(_ *call, x *[4]uint32, _ pair) { x[1] &= 0xffff })},
	{"dropout_key_16", counted(func(_ *call, x *[4]uint32, _ pair) { x[0] &= 0xffff })},
	{"dropout_last", counted(func(_ *call, x *[4]uint32, _ pair) {
		for i := range x {
			x[i] = uint32(float32(x[i]))
		}
	})},
	{"dropout_window", func(s *faults) {
		s.counter = func(c *call, at pair) (key [2]uint32, x [4]uint32) {
			lo, _ := c.visible(at.i)
			at.j = max(at.j-lo, 0)
			return counterOf(c, at)
		}
	}},
	{"dropout_eighth", keptWhere(func(c *call, at pair) bool { return at.j >= c.p.KVLen/8*8 })},
	{"dropout_mask", func(s *faults) {
		s.counter = func(c *call, at pair) (key [2]uint32, x [4]uint32) {
			n, end := 0, at.j
			for at.j = 0; at.j < end; at.j++ {
				n += only(c.p.Score.Mask && !maskAt(c, at), 1)
			}
			at.j -= n
			return counterOf(c, at)
		}
	}},
	{"dropout_pages", counted(func(c *call, x *[4]uint32, at pair) {
		if c.p.Page != 0 {
			x[0] = uint32(at.j % c.p.Page / 8)
		}
	})},

	{"softcap_50", capped(func(x, limit float32) (s, slope float32) {
		if float32(math.Abs(float64(x))) < limit/8 {
			return x, 1
		}
		return softcap(x, limit)
	})},
	{"softcap_30", capped(func(x, limit float32) (s, slope float32) {
		if limit == 0 {
			return x, 1
		}
		t := roundedTo(flashkit.BFloat16, float32(math.Tanh(float64(x/limit))))
		return limit * t, 1 - t*t
	})},
	{"softcap_levels", capped(func(x, limit float32) (s, slope float32) {
		if limit == 0 {
			return x, 1
		}
		z := max(-1, min(x/limit, 1))
		t := z - z*z*z/3 + 2*z*z*z*z*z/15
		return limit * t, 1 - t*t
	})},

	{"packed_tiles", indexed(func(c *call, t tensor, at pair) int {
		at.i += only(at.i >= 64, c.seq.Q0)
		return indexOf(c, t, at)
	})},
	{"page_wide", pages(func(c *flashkit.Call, b, j int) (page, at int) {
		all, width := c.Args.Seqs.Pages, (c.KVLen+c.Page-1)/c.Page
		return max(0, int(all[b*width+j/c.Page])), j % c.Page
	})},
	{"page_wide_bias", indexed(func(c *call, t tensor, at pair) int {
		if c.p.Page == 0 {
			return indexOf(c, t, at)
		}
		return t.Repeated(at.b, at.h, 0) + at.i*(len(c.args.Seqs.Pages)/c.c.Batch*c.p.Page) + at.j
	})},
	{"page_odd", sequences(func(c *flashkit.Call, _ int, s *flashkit.Seq) {
		if c.Page != 0 {
			s.M = min(s.M+s.M%2, c.KVLen)
		}
	})},

	{"whole_keys", func(s *faults) { s.keyEnd = func(m int) int { return m - only(m%64 == 0 && m > 0, 16) } }},
	{"whole_rows", func(s *faults) { s.rowEnd = func(n int) int { return n - only(n%128 == 0 && n > 0, 64) } }},
	{"many_heads", func(s *faults) { s.kvHead = func(p problem, h int) int { return h / (p.Heads / p.KVHeads) % 16 } }},
}

// withMask returns a mistake that changes the range of keys that a row sees, in problems with a
// mask.
func withMask(change func(p problem, lo, hi int) (int, int)) func(*faults) {
	return visible(func(p problem, i int) (lo, hi int) {
		if lo, hi = p.Keys(i); !p.Score.Mask {
			return lo, hi
		}
		return change(p, lo, hi)
	})
}

// shown returns a mistake that replaces the mask's lookup.
func shown(which func(c *call, at pair) bool) func(*faults) {
	return func(s *faults) { s.shown = which }
}

// unwritten returns a mistake that does not write the elements of DBias that `which` selects.
func unwritten(which func(c *call, at pair) bool) func(*faults) {
	return func(s *faults) { s.writes = func(c *call, at pair, _ float64) bool { return !which(c, at) } }
}

// keptWhere returns a mistake that never drops the weights of pairs that `which` selects.
func keptWhere(which func(c *call, at pair) bool) func(*faults) {
	return func(s *faults) {
		s.keep = func(c *call, at pair) float32 {
			if which(c, at) {
				return 1
			}
			return dropout(c, at)
		}
		s.keepDV, s.keepDP = s.keep, s.keep
	}
}
