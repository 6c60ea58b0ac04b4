//go:build !noasm && !purego

package simd

import "math"

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
func (j *job) runKeys(block int) int {
	if n := runBlocks * block; j.p.KVLen > n {
		return n
	}
	return 0
}

// sumFloats returns the workspace of the sums of a tile, and of their maxima.
func (j *job) sumFloats(lanes, vdim, block int) int {
	if j.runKeys(block) == 0 {
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
				factors[i] = exp((float64(before) - float64(m)) * j.scale)
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

// emptyTile returns a tile of n query rows that has seen no key. Its O has vdim
// rows, not begun, and its Q is left to the caller. Blocks are of so many keys.
func (isa *laneISA) emptyTile(j *job, ws *arena, from, n, vdim, block int) laneTile {
	t := laneTile{from: from, n: n, keySum: newKeySum(ws, isa.lanes, vdim), m: ws.take(isa.lanes), run: j.runKeys(block)}
	clear(t.l)
	for i := range t.m {
		t.m[i] = float32(math.Inf(-1))
	}
	if t.run > 0 {
		t.past, t.pastM = newKeySum(ws, isa.lanes, vdim), ws.take(isa.lanes)
	}
	return t
}
