//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
)

// A float32 sum over many keys loses digits: the larger the sum, the coarser its rounding. Hence
// sums have three levels. Registers sum the keys of a block, starting at zero. The sum of a run
// adds runBlocks blocks, and the sum of a long row adds runs. The error grows with the square root
// of the number of blocks in a run, or of runs, not with the number of keys.
//
// Runs begin at multiples of their length, independent of a tile's first key.

// keySum holds two sums over the keys of a run, or over all keys so far: l, and O before its
// division by l.
type keySum struct {
	all   []float32 // o, then l
	o     []float32 // [vdim][lanes]
	l     []float32 // [lanes]
	begun bool      // o is set
}

func newKeySum(ws *pool.Arena, lanes, vdim int) keySum {
	x := ws.Take((vdim + 1) * lanes)
	return keySum{all: x, o: x[:vdim*lanes], l: x[vdim*lanes:]}
}

// flushRun ends the tile's current run if the next run begins at key k. k is the first key of a
// block.
func (isa *laneRoutines) flushRun(j *job, t *laneTile, factors []float32, k int) {
	if t.run > 0 && k%t.run == 0 {
		isa.endRun(j, t, factors)
	}
}

// endRun adds the sums of the current run to t.past, which holds the sums of the finished runs. It
// then empties the current run. It does nothing if the current run is empty. factors is scratch.
func (isa *laneRoutines) endRun(j *job, t *laneTile, factors []float32) {
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

// endKeys adds the sums of the current run to the sums of the finished runs, if there are finished
// runs. t.o and t.l then hold the sums over all keys. O is 0 if the tile has seen no key. factors
// is scratch.
func (isa *laneRoutines) endKeys(j *job, t *laneTile, factors []float32) {
	if t.past.begun {
		isa.endRun(j, t, factors)
		t.keySum = t.past
	}
	if !t.begun {
		clear(t.o)
	}
}

// begin initializes the empty tile t for n query rows of seq, from row from on. It allocates O with
// vdim rows but does not set O. The caller must set Q. block is the number of keys of a block.
func (t *laneTile) begin(j *job, ws *pool.Arena, isa *laneRoutines, seq *seqTile, from, n, vdim, block int) {
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

// gradSum is dK and dV of an item's keys, summed over the current run of query rows.
type gradSum struct {
	all    []float32 // dk, then dv
	dk, dv []float32
	past   []float32 // dk and dv summed over the finished runs; nil if there is one run
	run    int
}

// newGradSum returns a zeroed sum for the keys of an item, with dim elements of dK and vdim
// elements of dV per key.
func (j *job) newGradSum(ws *pool.Arena, dim, vdim int, keys *keyRange) gradSum {
	n := min(j.keys, upToTiles(keys.to-keys.from))
	x := ws.Take(n * (dim + vdim))
	clear(x)
	s := gradSum{all: x, dk: x[:n*dim], dv: x[n*dim:]}
	if n > 0 && j.rowRuns(keys.N) {
		s.past = ws.Take(len(x))
		clear(s.past)
	}
	return s
}

// flushRowRun ends the current run if row belongs to another run: it adds s.all to s.past and
// clears s.all. row is counted over all heads.
func (isa *laneRoutines) flushRowRun(s *gradSum, row int) {
	if run := row / gradRun; s.past != nil && run != s.run {
		isa.addSum(&s.past[0], &s.all[0], len(s.all)/isa.lanes, &ones[0])
		clear(s.all)
		s.run = run
	}
}

// endRows adds the sums of the finished runs to s.all, which then holds dK and dV summed over all
// rows.
func (isa *laneRoutines) endRows(s *gradSum) {
	if s.past != nil {
		isa.addSum(&s.all[0], &s.past[0], len(s.all)/isa.lanes, &ones[0])
	}
}
