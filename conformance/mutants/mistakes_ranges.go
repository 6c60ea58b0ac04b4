package mutants

import "github.com/flashkit-go/flashkit"

// rangesMistakes are mistakes in ranges of keys.
var rangesMistakes = []mistake{
	{"ranges_nan", masked(negInf)},
	{"ranges_first", within(func(ranges []int32, j int) bool { return holds(ranges, j) && holds(ranges, j-1) })},
	{"ranges_end", within(func(ranges []int32, j int) bool { return holds(ranges, j) || holds(ranges, j-1) })},
	{"ranges_second", within(func(ranges []int32, j int) bool { return holds(ranges[:2], j) })},
	{"ranges_gap", within(func(ranges []int32, j int) bool { return holds([]int32{ranges[0], ranges[len(ranges)-1]}, j) })},
	{"ranges_inverted", within(func(ranges []int32, j int) bool { return !holds(ranges, j) })},
	{"ranges_band", visible(func(p problem, i int) (lo, hi int) {
		if p.Score.Ranges != 0 {
			p.Band = flashkit.Band{}
		}
		return p.Keys(i)
	})},
	{"ranges_mask", func(s *faults) {
		s.within = func(c *call, ranges []int32, at pair) bool { return c.p.Score.Mask || holds(ranges, at.j) }
	}},
	{"ranges_heads", ranged(func(c *call, t tensor, at pair) int { return t.Repeated(at.b, 0, at.i) })},
	{"ranges_kv_heads", ranged(func(c *call, t tensor, at pair) int { return t.Repeated(at.b, c.kvHead(c.p, at.h), at.i) })},
	{"ranges_batch", ranged(func(_ *call, t tensor, at pair) int { return t.Repeated(0, at.h, at.i) })},
	{"ranges_row", ranged(func(_ *call, t tensor, at pair) int { return t.Repeated(at.b, at.h, 0) })},
	{"ranges_one_batch", ranged(rangesRepeatNot)},
	{"ranges_one_head", ranged(rangesRepeatNot)},
	{"ranges_packed_row", ranged(func(c *call, t tensor, at pair) int { return t.Repeated(at.b, at.h, at.i+c.seq.Q0) })},
	{"ranges_packed_key", func(s *faults) {
		s.within = func(c *call, ranges []int32, at pair) bool { return holds(ranges, at.j+c.seq.K0) }
	}},
	{"ranges_aligned", func(s *faults) {
		s.within = func(c *call, ranges []int32, at pair) bool {
			return holds(ranges, at.j-c.p.Band.Diagonal(c.p.QLen, c.p.KVLen))
		}
	}},
	{"ranges_empty_row", masked(-1e30)},
	{"ranges_nan_row", func(s *faults) { s.divisor = itself[float64] }},
	{"ranges_no_row", masked(-1e30)},
	{"ranges_finite", masked(-5e4)},
	{"ranges_sink", sunk(func(c *call, r *row, at pair) {
		if ranges := c.ranges(c, at); c.p.Score.Ranges == 0 || ranges[0] < ranges[len(ranges)-1] {
			takeSink(c, r, at)
		}
	})},
	{"ranges_tile", within(func(ranges []int32, j int) bool { return holds(ranges, j) && holds(ranges, j/tile*tile) })},
	{"ranges_tiles", within(func(ranges []int32, j int) bool { return holds(ranges, j) && j < int(ranges[1]-1)/tile*tile+tile })},
	{"ranges_tile_of_row", func(s *faults) {
		s.within = func(c *call, ranges []int32, at pair) bool {
			first := at
			first.i = at.i / tile * tile
			of := c.ranges(c, first)
			return holds(ranges, at.j) && int(of[0])/tile <= at.j/tile && at.j/tile <= int(of[len(of)-1])/tile
		}
	}},
	{"ranges_past_band", visible(func(p problem, i int) (lo, hi int) {
		if lo, hi = p.Keys(i); p.Score.Ranges != 0 && lo < hi {
			hi = min((hi+31)/32*32, p.KVLen)
		}
		return lo, hi
	})},
	{"ranges_whole", within(func(ranges []int32, j int) bool {
		from := j / tile * tile
		return holds(ranges, j) && !(holds(ranges, from) && holds(ranges, from+tile-1))
	})},
	{"ranges_documents", func(s *faults) {
		s.ranges = func(c *call, at pair) []int32 {
			at.i = min(at.i+1, c.p.QLen-1)
			return rangesAt(c, at)
		}
	}},
}

// within returns a mistake that replaces the test of a key against the ranges of its row.
func within(of func(ranges []int32, j int) bool) func(*faults) {
	return func(s *faults) {
		s.within = func(_ *call, ranges []int32, at pair) bool { return of(ranges, at.j) }
	}
}

// ranged returns a mistake that replaces the index of a row's ranges. The index stays within the
// memory.
func ranged(index func(c *call, t tensor, at pair) int) func(*faults) {
	return func(s *faults) {
		s.ranges = func(c *call, at pair) []int32 { return c.rangesAt(index(c, c.args.Ranges, at)) }
	}
}

func rangesRepeatNot(_ *call, t tensor, at pair) int { return t.Offset(at.b, at.h, at.i) }
