package conformance

import (
	"math"
	"math/rand/v2"
	"slices"
)

// newRanges turns noise into ranges: it sorts the ends of each row, as numbers of keys up to m.
func (f *features) newRanges(m int) {
	eachRow(f.ranges.x, f.ranges.shape, func(_ int, row []float32) {
		for i, x := range row {
			row[i] = float32(math.Floor(float64((x+2)/4) * float64(m+1)))
		}
		slices.Sort(row)
	})
}

// holds reports whether key j is in one of row i's ranges, which are the numbers in x.
func (x *pairs) holds(b, h, i, j int) bool {
	for r := 0; r < x.shape[3]; r += 2 {
		if at := x.at(b, h, i, r); x.x[at] <= float32(j) && float32(j) < x.x[at+1] {
			return true
		}
	}
	return false
}

// setRanges sets the ranges of row i of every head to of(i).
func setRanges(of func(i int) []float32) func(in *Inputs) {
	return func(in *Inputs) {
		eachRow(in.ranges.x, in.ranges.shape, func(i int, row []float32) { copy(row, of(i)) })
	}
}

// sameRanges gives every row of every head the same ranges.
func sameRanges(ends ...float32) func(in *Inputs) {
	return setRanges(func(int) []float32 { return ends })
}

// rangesOnce sets the size of dimension d of the ranges to 1, so that they broadcast along it.
func rangesOnce(d int) func(in *Inputs) {
	return func(in *Inputs) {
		in.ranges.shape[d] = min(1, in.ranges.shape[d])
		in.ranges.x = in.ranges.x[:size(in.ranges.shape)]
	}
}

// nanOutsideRanges sets K and V to NaN at keys outside the ranges of row 0 of head 0, for all heads.
func nanOutsideRanges(in *Inputs) {
	for _, t := range []struct {
		x     []float32
		shape [4]int
	}{{in.k, in.p.KShape()}, {in.v, in.p.VShape()}} {
		eachRow(t.x, t.shape, func(j int, row []float32) {
			for c := range row {
				if !in.ranges.holds(0, 0, 0, j) {
					row[c] = nan
				}
			}
		})
	}
}

// randomRanges changes the ranges at random, by numbers from r. They may broadcast. With
// probability 3/4, they are the ranges of a mask that models use.
func (in *Inputs) randomRanges(r *rand.Rand) {
	f, n, m := &in.ranges, in.p.QLen, in.p.KVLen
	if len(f.x) == 0 {
		return
	}
	for d := range 2 {
		if r.IntN(3) == 0 {
			rangesOnce(d)(in)
		}
	}
	kind, block, first := r.IntN(8), 1<<r.IntN(8), r.IntN(m+1)
	limit := func(x int) float32 { return float32(max(0, min(x, m))) }
	eachRow(f.x, f.shape, func(i int, row []float32) {
		switch ends := row[len(row)-2:]; kind {
		case 0: // documents
			ends[0], ends[1] = limit(i/block*block), limit(i/block*block+block)
		case 1: // a prefix, then causal
			ends[0], ends[1] = 0, limit(max(first, i+1+m-n))
		case 2: // blocks, each of which sees all earlier blocks
			ends[0], ends[1] = 0, limit(i/block*block+block)
		case 3: // one key
			ends[0], ends[1] = limit(i), limit(i+1)
		case 4: // the same keys for all rows
			ends[0], ends[1] = limit(first), limit(first+block)
		case 5: // no key
			ends[0], ends[1] = limit(first), limit(first)
		default: // noise
			return
		}
		if len(row) > 2 { // the first keys, in addition
			row[0], row[1] = 0, min(row[2], float32(first%8))
		}
	})
}
