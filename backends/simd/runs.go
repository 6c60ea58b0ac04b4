//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
)

// One float32 sum of very many keys keeps few digits: the larger it is, the more of
// what is added to it is rounded away. So there are three levels of sums. A block of
// keys is summed from zero, in registers; a run of blocks adds up those sums; and the
// runs of a long row are added up in turn. The error then grows with the square root of
// the blocks of a run, or of the runs, and not with that of the keys.
//
// Runs begin at multiples of their length, wherever a tile's keys begin.

// A keySum is O and l of the keys so far, or of a run of them.
type keySum struct {
	all   []float32 // o, then l
	o     []float32 // [vdim][lanes]
	l     []float32 // [lanes]
	begun bool      // o holds something
}

func newKeySum(ws *pool.Arena, lanes, vdim int) keySum {
	x := ws.Take((vdim + 1) * lanes)
	return keySum{all: x, o: x[:vdim*lanes], l: x[vdim*lanes:]}
}

// meet ends the tile's run if key k, where a block begins, begins another.
func (isa *laneISA) meet(j *job, t *laneTile, factors []float32, k int) {
	if t.run > 0 && k%t.run == 0 {
		isa.endRun(j, t, factors)
	}
}

// endRun adds the run at hand, if it has begun, to those before it.
func (isa *laneISA) endRun(j *job, t *laneTile, factors []float32) {
	if !t.begun {
		return
	}
	if t.past.begun {
		for i, m := range t.m {
			factors[i] = 1
			if before := t.pastM[i]; before != m {
				factors[i] = scalar.Exp((float64(before) - float64(m)) * j.unit)
			}
		}
		isa.addSum(&t.past.all[0], &t.all[0], len(t.all)/isa.lanes, &factors[0])
	} else {
		t.past, t.keySum = t.keySum, t.past
	}
	copy(t.pastM, t.m)
	t.begun = false
	clear(t.l)
}

// endKeys makes O and l of all keys the tile's.
func (isa *laneISA) endKeys(j *job, t *laneTile, factors []float32) {
	if t.past.begun {
		isa.endRun(j, t, factors)
		t.keySum = t.past
	}
	if !t.begun {
		clear(t.o)
	}
}

// begin makes t, which is empty, n query rows that have seen no key. Its O has vdim rows, not
// begun, and its Q is left to the caller. Blocks are of so many keys.
func (t *laneTile) begin(j *job, ws *pool.Arena, isa *laneISA, seq *seqTile, from, n, vdim, block int) {
	t.seq, t.from, t.n, t.run = *seq, from, n, j.runKeys(block)
	t.keySum, t.m = newKeySum(ws, isa.lanes, vdim), ws.Take(isa.lanes)
	clear(t.l)
	for i := range t.m {
		t.m[i] = float32(math.Inf(-1))
	}
	if t.run > 0 {
		t.past, t.pastM = newKeySum(ws, isa.lanes, vdim), ws.Take(isa.lanes)
	}
}

// A gradSum is dK and dV of the keys of an item, of the run of rows at hand.
type gradSum struct {
	all    []float32 // dk, then dv
	dk, dv []float32
	past   []float32 // the same of the runs before, nil if all rows are one
	run    int
}

// newGradSum has so many elements for each key, and sums up n query rows.
func (j *job) newGradSum(ws *pool.Arena, dim, vdim, n int) gradSum {
	x := ws.Take(j.keys * (dim + vdim))
	clear(x)
	s := gradSum{all: x, dk: x[:j.keys*dim], dv: x[j.keys*dim:]}
	if j.rowRuns(n) {
		s.past = ws.Take(len(x))
		clear(s.past)
	}
	return s
}

// meetRow ends the run at hand if the row, counted over all heads, is of another.
func (isa *laneISA) meetRow(s *gradSum, row int) {
	if run := row / gradRun; s.past != nil && run != s.run {
		isa.addSum(&s.past[0], &s.all[0], len(s.all)/isa.lanes, &ones[0])
		clear(s.all)
		s.run = run
	}
}

// endRows makes dK and dV of all rows those at hand.
func (isa *laneISA) endRows(s *gradSum) {
	if s.past != nil {
		isa.addSum(&s.all[0], &s.past[0], len(s.all)/isa.lanes, &ones[0])
	}
}
