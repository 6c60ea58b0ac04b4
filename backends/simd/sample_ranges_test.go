package simd_test

import (
	"math/rand/v2"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// drawRanges draws the ranges of each row. Near rows have near ranges, or any.
func (s *sample) drawRanges(r *rand.Rand) {
	p, n := &s.p, 2*s.p.Score.Ranges
	if n == 0 {
		return
	}
	shape := [4]int{p.Batch, p.Heads, p.QLen, n}
	for d := range 2 {
		if r.IntN(2) == 0 {
			shape[d] = 1
		}
	}
	s.args.Ranges = s.newTensor(r, flashkit.Int32, shape)
	kind, block := r.IntN(4), 1+r.IntN(70)
	ends := make([]int32, n)
	each(s.args.Ranges, func(at [4]int, i int) {
		if at[3] != 0 {
			return
		}
		for c := range ends {
			switch kind {
			case 0:
				ends[c] = int32(r.IntN(p.KVLen + 1))
			case 1: // blocks of rows with a block of keys each
				ends[c] = int32(min(at[2]/block*block+(c-n+2)*block, p.KVLen))
			case 2: // a diagonal
				ends[c] = int32(min(at[2]+c*block, p.KVLen))
			default: // the same for all rows
				ends[c] = int32(min(c*c*block, p.KVLen))
			}
		}
		for c := range ends {
			ends[c] = max(ends[c], 0)
		}
		slices.Sort(ends)
		copy(s.args.Ranges.Int32s()[i:], ends)
	})
}

func inRanges(ends []int32, key int) bool {
	for i := 0; i < len(ends); i += 2 {
		if int(ends[i]) <= key && key < int(ends[i+1]) {
			return true
		}
	}
	return false
}

// setRanges sets the ranges of sequence b, which is batch entry at of the tensor.
func (s *batchTrial) setRanges(p flashkit.Problem, a *flashkit.Args, b, at int) {
	for row := range p.Heads * s.n[b] * min(1, p.Score.Ranges) {
		h, i := row/s.n[b], row%s.n[b]
		ends := a.Ranges.Int32s()[a.Ranges.Offset(at, h, i):][:2*p.Score.Ranges]
		for c := range ends {
			x := s.number("Ranges", b, h, i/s.block[0], c)
			ends[c] = int32(min(x*x*float32(s.m[b]), float32(s.m[b])))
		}
		slices.Sort(ends)
	}
}
