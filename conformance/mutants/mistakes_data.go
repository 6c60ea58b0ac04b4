package mutants

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// dropoutMistakes are mistakes in dropout. Each has the name of the trap that catches it. A trap is
// a test case for one mistake.
var dropoutMistakes = []mistake{
	{"dropout_scale", func(s *faults) {
		s.keep = func(c *call, at pair) float32 { return min(dropout(c, at), 1) }
		s.keepDV, s.keepDP = s.keep, s.keep
	}},
	{"dropout_lse", func(s *faults) {
		s.counted = func(c *call, w float32, at pair) float32 { return w * min(dropout(c, at), 1) }
	}},
	{"dropout_dp", func(s *faults) { s.keepDP = all }},
	{"dropout_dv", func(s *faults) { s.keepDV = all }},
	{"dropout_delta", func(s *faults) {
		s.delta = func(c *call, doDotO, dlse float32) float32 { return doDotO*(1-c.p.Score.Dropout) - dlse }
	}},
	{"dropout_batch", counted(func(_ *call, x *[4]uint32, _ pair) { x[3] = 0 })},
	{"dropout_heads", counted(func(c *call, x *[4]uint32, at pair) { x[2] = uint32(c.kvHead(c.p, at.h)) })},
	{"dropout_packed_row", counted(func(c *call, x *[4]uint32, at pair) { x[1] = uint32(c.seq.Q0 + at.i) })},
	{"dropout_packed_key", counted(func(c *call, x *[4]uint32, at pair) { x[0] = uint32((c.seq.K0 + at.j) / 8) })},
	{"dropout_key", counted(func(_ *call, x *[4]uint32, at pair) { x[0] = uint32(at.j) })},
	{"dropout_row", counted(func(_ *call, x *[4]uint32, _ pair) { x[0], x[1] = x[1], x[0] })},
	{"dropout_seed", func(s *faults) {
		s.counter = func(c *call, at pair) (key [2]uint32, x [4]uint32) {
			key, x = counterOf(c, at)
			key[1] = 0
			return key, x
		}
	}},
	{"dropout_inverted", func(s *faults) { s.kept = func(number uint32, p float64) bool { return !atLeast(number, p) } }},
	{"dropout_origin_batch", counted(func(_ *call, x *[4]uint32, at pair) { x[3] = uint32(at.b) })},
	{"dropout_origin_head", counted(func(_ *call, x *[4]uint32, at pair) { x[2] = uint32(at.h) })},
	{"dropout_origin_row", counted(func(_ *call, x *[4]uint32, at pair) { x[1] = uint32(at.i) })},
	{"dropout_origin_key", counted(func(_ *call, x *[4]uint32, at pair) { x[0] = uint32(at.j / 8) })},
	{"dropout_small", func(s *faults) {
		s.kept = func(number uint32, p float64) bool { return number>>8 >= uint32(p*256+.5) }
	}},
	{"dropout_half", func(s *faults) { s.half = func(words [4]uint32, j int) uint32 { return halfOf(words, j^4) } }},
	{"dropout_rounded", func(s *faults) { s.makeUp = func(p float64) float32 { return float32(1 / (1 - p)) } }},
}

// sequenceMistakes are mistakes in sequences and pages. Each has the name of the trap that catches
// it. A trap is a test case for one mistake.
var sequenceMistakes = []mistake{
	{"lengths_neighbor", sequences(func(c *flashkit.Call, b int, s *flashkit.Seq) {
		next := c.Seq((b + 1) % c.Batch)
		s.N, s.M = next.N, next.M
	})},
	{"packed_neighbor", sequences(func(c *flashkit.Call, b int, s *flashkit.Seq) { // only if the next sequence has keys
		if next := c.Seq((b + 1) % c.Batch); next.M > 0 {
			s.K0 = next.K0
		}
	})},
	{"first_empty", sequences(func(c *flashkit.Call, b int, s *flashkit.Seq) {
		if c.Seq(0).N == 0 {
			s.N = 0
		}
	})},
	{"middle_empty", sequences(func(c *flashkit.Call, b int, s *flashkit.Seq) {
		for before := range b {
			if c.Seq(before).N == 0 {
				s.KVBatch--
			}
		}
	})},
	{"last_empty", func(s *faults) { s.pads = func(c *call, _ string, packed bool) bool { return !packed && c.seq.N > 0 } }},
	{"sequence_no_keys", func(s *faults) { s.divisor = itself[float64] }},
	{"one_key_more", sequences(func(c *flashkit.Call, _ int, s *flashkit.Seq) { s.M = min(s.M+1, c.KVLen) })},
	{"one_key_less", sequences(func(_ *flashkit.Call, _ int, s *flashkit.Seq) { s.M = max(s.M-1, 0) })},
	{"one_row_more", sequences(func(c *flashkit.Call, _ int, s *flashkit.Seq) { s.N = min(s.N+1, c.QLen) })},
	{"one_row_less", sequences(func(_ *flashkit.Call, _ int, s *flashkit.Seq) { s.N = max(s.N-1, 0) })},
	{"padding_o", padding("O")},
	{"padding_lse", padding("LSE")},
	{"padding_dq", padding("DQ")},
	{"padding_dk", padding("DK")},
	{"padding_dv", padding("DV")},
	{"band_longest", func(s *faults) { s.aligned = func(c *call) problem { return c.c.Problem } }},
	{"packed_outside", func(s *faults) {
		s.pads = func(c *call, _ string, packed bool) bool { return !packed || c.b == c.c.Batch-1 }
	}},
	{"packed_start", sequences(func(c *flashkit.Call, _ int, s *flashkit.Seq) {
		first := c.Seq(0)
		s.Q0, s.K0 = s.Q0-first.Q0, s.K0-first.K0
	})},
	{"packed_keys", sequences(func(_ *flashkit.Call, _ int, s *flashkit.Seq) { s.K0 = s.Q0 })},

	{"page_tail", sequences(func(c *flashkit.Call, _ int, s *flashkit.Seq) { s.M = (s.M + c.Page - 1) / c.Page * c.Page })},
	{"page_table", pages(func(c *flashkit.Call, b, j int) (page, at int) { return pageOf(c, (b+1)%c.Batch, j) })},
	{"page_order", pages(func(c *flashkit.Call, b, j int) (page, at int) {
		return b*(len(c.Args.Seqs.Pages)/c.Batch) + j/c.Page, j % c.Page
	})},
	{"page_first", pages(func(c *flashkit.Call, b, j int) (page, at int) { return table(c, b, 0), j % c.Page })},
	{"page_1", pages(func(c *flashkit.Call, b, j int) (page, at int) {
		if c.Page == 1 {
			return table(c, b, j/2), 0
		}
		return pageOf(c, b, j)
	})},
	{"page_3", pages(func(c *flashkit.Call, b, j int) (page, at int) {
		return table(c, b, j/powerOfTwo(c.Page)), j % powerOfTwo(c.Page)
	})},
}

// carryMistakes are mistakes in Carry (results for earlier keys), in K and V of another type than
// Q, and in the mask's shift. Each has the name of the trap that catches it. A trap is a test case
// for one mistake.
var carryMistakes = []mistake{
	{"carry_rescale", func(s *faults) {
		s.carry = func(c *call, r *row, at pair) {
			if lse, _ := c.earlier(at); lse != negInf {
				c.take(r, lse, nil)
			}
		}
		s.end = func(c *call, r *row, at pair) {
			if lse, o := c.earlier(at); lse != negInf {
				add(r.o, 1, o, itself[float64])
			}
		}
	}},
	{"carry_sum", carried(func(c *call, r *row, at pair) {
		l := r.l
		takeEarlier(c, r, at)
		r.l = l
	})},
	{"carry_nothing", carried(func(c *call, r *row, at pair) {
		lse, o := c.earlier(at)
		c.take(r, lse, o)
	})},
	{"carry_unseen", carried(func(c *call, r *row, at pair) {
		if lo, hi := c.visible(at.i); lo < hi {
			takeEarlier(c, r, at)
		}
	})},
	{"carry_lse", func(s *faults) {
		s.settle = func(c *call, r *row, at pair) {
			if c.p.Carry {
				r.m, _ = c.earlier(at)
				r.l = 1
			}
		}
	}},
	{"carry_padding", func(s *faults) { s.pads = func(c *call, _ string, packed bool) bool { return !packed && !c.p.Carry } }},
	{"carry_sink", sunk(func(c *call, r *row, at pair) {
		if !c.p.Carry {
			takeSink(c, r, at)
		}
	})},
	{"carry_dropout", carried(func(c *call, r *row, at pair) {
		lse, o := c.earlier(at)
		if lse == negInf {
			return
		}
		for x := range o {
			o[x] /= 1 - c.p.Score.Dropout
		}
		c.take(r, lse, o)
	})},

	{"kv_f16", misread(flashkit.Float16, half.FromBF16)},
	{"kv_bf16", misread(flashkit.BFloat16, half.FromF16)},
	{"kv_query", func(s *faults) {
		s.query = func(c *call, q []float32) (rounded []float32) {
			for _, x := range q {
				rounded = append(rounded, roundedTo(c.p.KVType(), x))
			}
			return rounded
		}
	}},
	{"kv_weights", func(s *faults) {
		s.weight = func(c *call, w float32) float32 { return roundedTo(c.p.KVType(), w) }
	}},

	{"shift_ignored", shifted(func(p problem) int { return -p.Band.Shifted() })},
	{"shift_sign", shifted(func(p problem) int { return -2 * p.Band.Shifted() })},
	{"shift_topleft", shifted(func(p problem) int { return -only(p.Band.Shifted() != 0, p.KVLen-p.QLen) })},
	{"shift_past_keys", seen(func(_, lo, hi int) (int, int) { return lo - only(lo == hi && lo > 0, 1), hi })},
}

// all is a dropout function that keeps every weight: the factor is always 1.
func all(*call, pair) float32 { return 1 }

// counted returns a mistake that changes the counter of Philox, in both passes.
func counted(change func(c *call, x *[4]uint32, at pair)) func(*faults) {
	return func(s *faults) {
		s.counter = func(c *call, at pair) (key [2]uint32, x [4]uint32) {
			key, x = counterOf(c, at)
			change(c, &x, at)
			return key, x
		}
	}
}

// sequences returns a mistake that changes a sequence's position and lengths.
func sequences(change func(c *flashkit.Call, b int, s *flashkit.Seq)) func(*faults) {
	return func(s *faults) {
		s.sequence = func(c *flashkit.Call, b int) flashkit.Seq {
			seq := c.Seq(b)
			change(c, b, &seq)
			return seq
		}
	}
}

// padding returns a mistake that does not write the padding of one output.
func padding(of string) func(*faults) {
	return func(s *faults) {
		s.pads = func(_ *call, name string, packed bool) bool { return !packed && name != of }
	}
}

func pages(page func(c *flashkit.Call, b, j int) (page, at int)) func(*faults) {
	return func(s *faults) { s.page = page }
}

func carried(carry func(c *call, r *row, at pair)) func(*faults) {
	return func(s *faults) { s.carry = carry }
}

// misread returns a mistake in reading K and V: elements of type `of` are decoded by the function
// `as`. `of` is one of the two 16-bit types. `as` decodes the other 16-bit type.
func misread(of flashkit.DType, as func(uint16) float32) func(*faults) {
	return func(s *faults) {
		s.kv = func(t tensor, at int) float32 {
			if t.DType() == of {
				return as(t.Uint16s()[at])
			}
			return value(t, at)
		}
	}
}

// shifted returns a mistake that adds the number by(p) to the shift of the band.
func shifted(by func(p problem) int) func(*faults) {
	return visible(func(p problem, i int) (lo, hi int) {
		p.Band = p.Band.Shift(by(p))
		return p.Keys(i)
	})
}
