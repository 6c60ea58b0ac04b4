//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// One float32 sum of very many keys keeps few digits: the larger it is, the more of
// what is added to it is rounded away. So there are three levels of sums. A block of
// keys is summed from zero, in registers; a run of blocks adds up those sums; and the
// runs of a long row are added up in turn. The error then grows with the square root of
// the blocks of a run, or of the runs, and not with that of the keys.
//
// Runs begin at multiples of their length, wherever a tile's keys begin.

const runBlocks = 32 // blocks of keys of a run

// A keySum is O and l of the keys so far, or of a run of them.
type keySum struct {
	all   []float32 // o, then l
	o     []float32 // [vdim][lanes]
	l     []float32 // [lanes]
	begun bool      // o holds something
}

func newKeySum(ws *arena, lanes, vdim int) keySum {
	x := ws.take((vdim + 1) * lanes)
	return keySum{all: x, o: x[:vdim*lanes], l: x[vdim*lanes:]}
}

// runKeys returns the keys of a run, or 0 if all keys are one.
func (pl *plan) runKeys(block int) int {
	if n := runBlocks * block; pl.p.KVLen > n {
		return n
	}
	return 0
}

// sumFloats returns the workspace of the sums of a tile, and of their maxima.
func (pl *plan) sumFloats(lanes, vdim, block int) int {
	if pl.runKeys(block) == 0 {
		return lanes * (vdim + 2)
	}
	return 2 * lanes * (vdim + 2)
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
				factors[i] = exp((float64(before) - float64(m)) * j.unit)
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
func (t *laneTile) begin(j *job, ws *arena, isa *laneISA, seq *seqTile, from, n, vdim, block int) {
	t.seq, t.from, t.n, t.run = *seq, from, n, j.runKeys(block)
	t.keySum, t.m = newKeySum(ws, isa.lanes, vdim), ws.take(isa.lanes)
	clear(t.l)
	for i := range t.m {
		t.m[i] = float32(math.Inf(-1))
	}
	if t.run > 0 {
		t.past, t.pastM = newKeySum(ws, isa.lanes, vdim), ws.take(isa.lanes)
	}
}

// gradRun is the rows of a run of dK and dV, and the keys of a chain of one of dQ.
// Gradients of 16 bits need no runs.
const gradRun = 4096

// rowRuns reports whether dK and dV of a sequence of n query rows are summed in runs of
// them.
func (pl *plan) rowRuns(n int) bool {
	return pl.p.DType == flashkit.Float32 && n*(pl.p.Heads/max(1, pl.p.KVHeads)) > gradRun
}

// A gradSum is dK and dV of the keys of an item, of the run of rows at hand.
type gradSum struct {
	all    []float32 // dk, then dv
	dk, dv []float32
	past   []float32 // the same of the runs before, nil if all rows are one
	run    int
}

// newGradSum has so many elements for each key, and sums up n query rows.
func (j *job) newGradSum(ws *arena, dim, vdim, n int) gradSum {
	x := ws.take(j.keys * (dim + vdim))
	clear(x)
	s := gradSum{all: x, dk: x[:j.keys*dim], dv: x[j.keys*dim:]}
	if j.rowRuns(n) {
		s.past = ws.take(len(x))
		clear(s.past)
	}
	return s
}

func (pl *plan) gradFloats(dim, vdim int) int {
	if pl.rowRuns(pl.p.QLen) {
		return 2 * pl.keys * (dim + vdim)
	}
	return pl.keys * (dim + vdim)
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

// keyRuns reports whether dQ is summed in runs of keys.
func (pl *plan) keyRuns() bool {
	return pl.p.DType == flashkit.Float32 && mostSeen(&pl.p) > gradRun*pl.chains
}

// beginsRun reports whether a block of keys from a given one on begins a run of dQ. Runs
// are those of the block's chain.
func (pl *plan) beginsRun(from int) bool {
	const pieces = gradRun / chainKeys // of a chain
	return pl.keyRuns() && from%chainKeys == 0 && from/chainKeys/pl.chains%pieces == 0
}

// meetKeys ends the run of dQ of a tile if a block of keys begins another.
func (isa *laneISA) meetKeys(j *job, x *tileStats, keys *keyRange, h, t int) {
	if !j.beginsRun(keys.from) {
		return
	}
	chain := j.chain(keys)
	run, step := isa.gathered(j, x, &keys.seqTile, h, t, chain)
	past, pastStep := isa.gathered(j, x, &keys.seqTile, h, t, j.chains+chain)
	for i := range min(j.rows, keys.N-t*j.rows) {
		isa.add(isa.addProduct, isa.addProductMasked, past[i*pastStep:], pastStep, ones[:], 0, run[i*step:], step, 1, 1, j.p.Dim)
		clear(run[i*step:][:j.p.Dim])
	}
}
