//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	helpers "github.com/flashkit-go/flashkit/internal/workers"
)

// tileStats is the backward pass's state of a tile of query rows.
type tileStats struct {
	lse       []float32 // [rows]; MaxFloat32 for a row without weights
	delta     []float32 // [rows], dO·O - dLSE
	nonFinite []float32 // [1], not 0 if Q or dO may be NaN or infinite and some pair is hidden
	sink      []float32 // [2], a float64's bits: the tile's share of dSink
	bounds    []float32 // [8], bounds of the rows' ranges of keys: see setBounds
	dq        []float32 // [copies][dqRows][dqStep]
}

// gathered returns a sum of dQ of tile t of query head h, and the distance between its rows. The
// argument sum is an index: one sum per chain comes first, then each chain's sum of finished runs.
func (isa *laneRoutines) gathered(j *job, x *tileStats, s *seqTile, h, t, sum int) (dq []float32, step int) {
	f := j.args
	if sum -= j.sums() - isa.copies(&j.plan); sum < 0 {
		return f.DQ.Float32s()[f.DQ.Offset(s.QBatch, h, s.Q0+t*j.rows):], rowStep(&f.DQ)
	}
	return x.dq[sum*copySize(&j.plan):], j.dqStep
}

// clearSums sets the sums of dQ of a tile to 0.
func (isa *laneRoutines) clearSums(j *job, x *tileStats, y *seqTile, t int) {
	clear(x.dq)
	if !isa.direct(&j.args.DQ) || y.from == y.to {
		return
	}
	dq, step := isa.gathered(j, x, y, y.h, t, 0)
	for i := range y.to - y.from {
		clear(dq[i*step:][:j.p.Dim])
	}
}

// sumsOf returns the number of sums of dQ that a sequence with m keys uses. The other sums are 0.
// They must not be added, because -0 + 0 is not -0.
func (pl *plan) sumsOf(m int) int {
	if m > gradRun*pl.chains {
		return pl.sums()
	}
	return min(pl.chains, ceilDiv(m, chainKeys))
}

func (isa *laneRoutines) addChains(j *job, x *tileStats, y *seqTile, t int) {
	sums := j.sumsOf(y.M)
	if sums <= 1 || y.from == y.to {
		return
	}
	dq, step := isa.gathered(j, x, y, y.h, t, 0)
	others, otherStep := isa.gathered(j, x, y, y.h, t, 1)
	for i := range y.to - y.from {
		isa.add(isa.addProduct, isa.addProductMasked, dq[i*step:], step, ones[:], 0,
			others[i*otherStep:], copySize(&j.plan), 1, sums-1, j.p.Dim)
	}
}

// stats returns the tileStats of tile t of query head h of sequence b.
func (isa *laneRoutines) stats(j *job, b, h, t int) tileStats {
	size := isa.statsSize(&j.plan)
	x := j.Shared.All[j.biasSums()+j.byRow.Index(b, h, t)*size:][:size]
	rows := statsRows(&j.plan)
	return tileStats{x[:rows], x[rows : 2*rows], x[2*rows:][:1], x[2*rows+1:][:2], x[2*rows+4:][:8], x[2*rows+16:]}
}

// storeSums writes dQ of a tile, if it was summed in workspace.
func (isa *laneRoutines) storeSums(j *job, x *tileStats, y *seqTile) {
	f := j.args
	if isa.direct(&f.DQ) || y.from == y.to {
		return
	}
	isa.storeRows(&f.DQ, y.QBatch, y.h, y.Q0+y.from, y.to-y.from, x.dq, j.dqStep)
}

// takeLSE sets lse to the LSE of n rows from row r on. It stores MaxFloat32 in place of -Inf.
func (j *job) takeLSE(lse []float32, b, h, r, n int) {
	if n == 0 {
		return
	}
	t := &j.args.LSE
	takeLSE(lse[:n], t.Float32s()[t.Offset(b, h, r):], rowStep(t))
}

// takeLSE sets lse to elements of the slice from, step elements apart. It stores MaxFloat32 in place of -Inf.
func takeLSE(lse, from []float32, step int) {
	for i := range lse {
		if lse[i] = from[i*step]; math.IsInf(float64(lse[i]), -1) {
			lse[i] = math.MaxFloat32
		}
	}
}

// takeDLSE subtracts dLSE of n rows from delta. The first row is row r.
func (j *job) takeDLSE(delta []float32, b, h, r, n int) {
	t := &j.args.DLSE
	if t.IsZero() || n == 0 {
		return
	}
	from, step := t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	for i := range delta[:n] {
		delta[i] -= from[i*step]
	}
}

func (isa *laneRoutines) flushKeyRun(j *job, x *tileStats, keys *keyRange, h, t int) {
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

// hasPassed reports whether an item has passed the tile with index at, in the order in which blocks
// visit tiles. For dBias, item is an index of j.progress, and at may be the index of a head. If
// item is negative, hasPassed returns true.
func (j *job) hasPassed(item int, at int64) bool { return item < 0 || j.progress[item].Load() > at }

// waitFor waits until hasPassed(before, at) is true. It returns false if the call is canceled.
func (j *job) waitFor(before int, at int64) bool {
	return helpers.Await(func() bool { return j.hasPassed(before, at) }, j.Canceled)
}
