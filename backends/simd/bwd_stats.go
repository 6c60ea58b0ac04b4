//go:build (amd64 || arm64) && !purego

package simd

import "math"

// A tileStats is what the backward pass keeps of a tile of query rows.
type tileStats struct {
	lse   []float32 // [rows]; the largest float32 where a row has no weight anywhere
	delta []float32 // [rows], dO·O - dLSE
	wild  []float32 // [1], not 0 if Q or dO may hold what is not finite and some key is hidden from some row
	sink  []float32 // [2], the bits of a float64: the sum that the tile adds to dSink
	dq    []float32 // [copies][copied][padded dim]
}

func (isa *laneISA) statsSize(pl *plan) int {
	return 2*statsRows(pl) + 16 + isa.copies(pl)*copySize(pl)
}

// statsRows returns the rows of a tile, in whole lanes, of which there are stats.
func statsRows(pl *plan) int { return max(tileStep, min(pl.rows, upToTiles(pl.p.QLen))) }

// sums returns how many sums of dQ there are: one for each chain, and in runs another,
// of the runs before.
func (pl *plan) sums() int {
	if pl.keyRuns() {
		return 2 * pl.chains
	}
	return pl.chains
}

// copies returns how many sums of dQ are gathered in workspace: all but the first,
// which has dQ itself if rows of that will do.
func (isa *laneISA) copies(pl *plan) int {
	if isa.directRows(pl.p.DType, pl.p.Dim) {
		return pl.sums() - 1
	}
	return pl.sums()
}

func copySize(pl *plan) int { return pl.copied * pad(pl.p.Dim) }

// gathered returns where a sum of the rows of dQ of tile t of query head h lies, and their distance. The
// sums of the chains come first.
func (isa *laneISA) gathered(j *job, x *tileStats, s *seqTile, h, t, sum int) (dq []float32, step int) {
	f := j.args
	if sum -= j.sums() - isa.copies(&j.plan); sum < 0 {
		return f.DQ.Float32s()[f.DQ.Offset(s.QBatch, h, s.Q0+t*j.rows):], rowStep(&f.DQ)
	}
	return x.dq[sum*copySize(&j.plan):], pad(j.p.Dim)
}

// clearSums sets the sums of dQ of a tile to 0.
func (isa *laneISA) clearSums(j *job, x *tileStats, y *seqTile, t int) {
	clear(x.dq)
	if !isa.direct(&j.args.DQ) || y.from == y.to {
		return
	}
	dq, step := isa.gathered(j, x, y, y.h, t, 0)
	for i := range y.to - y.from {
		clear(dq[i*step:][:j.p.Dim])
	}
}

// sumsOf returns how many of the sums a sequence of m keys has. It must not add those of
// others, which are 0: -0 + 0 is not -0.
func (pl *plan) sumsOf(m int) int {
	if m > gradRun*pl.chains {
		return pl.sums()
	}
	return min(pl.chains, ceilDiv(m, chainKeys))
}

// addChains adds the other sums to the first.
func (isa *laneISA) addChains(j *job, x *tileStats, y *seqTile, t int) {
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

// stats returns the place of tile t of query head h of sequence b.
func (isa *laneISA) stats(j *job, b, h, t int) tileStats {
	size := isa.statsSize(&j.plan)
	x := j.shared.all[j.biasSums()+j.byRow.index(b, h, t)*size:][:size]
	rows := statsRows(&j.plan)
	return tileStats{x[:rows], x[rows : 2*rows], x[2*rows:][:1], x[2*rows+1:][:2], x[2*rows+16:]}
}

// storeSums writes dQ of a tile that was gathered elsewhere.
func (isa *laneISA) storeSums(j *job, x *tileStats, y *seqTile) {
	p, f := &j.p, j.args
	if isa.direct(&f.DQ) || y.from == y.to {
		return
	}
	isa.storeRows(&f.DQ, y.QBatch, y.h, y.Q0+y.from, y.to-y.from, x.dq, pad(p.Dim))
}

// takeLSE sets lse to LSE of n rows, from row r on.
func (j *job) takeLSE(lse []float32, b, h, r, n int) {
	t := &j.args.LSE
	for i := range n {
		lse[i] = t.Float32s()[t.Offset(b, h, r+i)]
		if math.IsInf(float64(lse[i]), -1) {
			lse[i] = math.MaxFloat32
		}
	}
}

// takeDLSE subtracts dLSE of n rows, from row r on, from delta.
func (j *job) takeDLSE(delta []float32, b, h, r, n int) {
	t := &j.args.DLSE
	if t.IsZero() {
		return
	}
	for i := range n {
		delta[i] -= t.Float32s()[t.Offset(b, h, r+i)]
	}
}
