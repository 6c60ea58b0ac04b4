//go:build amd64 && !purego

package simd

import (
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/half"
)

// bwd_amxbf16 computes like bwd_avx512bf16, but with AMX. Both kernels have the same blocks of
// keys, panels of 32 keys, and order of sums. bwd_amxbf16 has larger tiles of query rows. The right
// column names the layout of the operands:
//
//	for each panel:
//		S  = Q Kᵀ; dP = dO Vᵀ                  rows of Q and dO in place
//		P  = exp(scale * S - LSE); dS = P (dP - delta)
//		dVᵀ += dOᵀ P; dKᵀ += Qᵀ dS             pairs of rows of P and dS
//	dQ += dS K                                 rows of dS, pairs of keys
//
// The lanes hold columns in the product for dQ, and keys in all other products. Q and dO are
// transposed once per visit of a tile, dKᵀ and dVᵀ once at the end of the block. P and dS are
// computed in float32, then rounded to bf16. The factor scale of dS is applied at the end, to dK
// and dQ.
//
// delta is the diagonal of dO Oᵀ. The same instruction sums delta and dP, in the same order. So dS
// is exactly 0 in a row that sees one key. Where the mask or the band hides a key from a row, P and
// dS are 0.

const tileRowsBwd = 256 // most query rows of a tile. AMX registers sum dKᵀ and dVᵀ over the rows of a tile, so large tiles load and store the sums less often

func bwdAMXBF16Plan(pl *plan) {
	p := &pl.p
	pl.planBlocks(max(tileStep, min(tileRowsBwd, upToTiles(p.QLen))), bwdBlockK, minBlockK)
	dim, vdim, words, vwords := upToTiles(p.Dim), upToTiles(p.VDim), pairWords(p.Dim), pairWords(p.VDim)
	avx512Lanes.setBlocks(pl, 3*pairLanes*vwords+pairLanes*(pairLanes+1),
		pl.gradFloats(dim, vdim)+pl.maskFloats()+pl.scoreFloats(pairLanes)+pl.wideFloats()+pl.keys*(words+vwords)+pairFloats(p.Dim, pl.keys)+
			packedFloats(p.Dim, pl.rows)+packedFloats(p.VDim, pl.rows)+pl.rows*(words+vwords)+
			pl.rows*(3*pairLanes+tileDSStep(pl)/2+1)+pairLanes*(max(dim, vdim)+max(words, vwords)+2))
}

func bwdAMXBF16Times(pl *plan) [3]timedPhase {
	return bwdTilePace.backward(pl.call, pairLanes, tileStep, avx512Lanes.cut(pl))
}

func (pl *plan) wideFloats() int {
	if !pl.featured() {
		return 0
	}
	return gradRows * tileDSStep(pl)
}

// tileDSStep is the distance between rows of dS, in elements. It is no power of two, so that the
// rows of an AMX tile do not compete for the same cache sets. Rows begin at whole cache lines.
func tileDSStep(pl *plan) int { return pl.keys + tileStep }

func bwdAMXBF16Prepare(j *job, ws *pool.Arena, item int) {
	p, f := &j.p, j.args
	var y seqTile
	t := y.findRows(&j.plan, item)
	x, words := avx512Lanes.stats(j, y.b, y.h, t), pairWords(p.VDim)
	avx512Lanes.clearSums(j, &x, &y, t)
	if p.Score.Ranges != 0 {
		x.setBounds(j, &y)
	}
	o, buf, doBuf := takeWords(ws, pairLanes*words), takeWords(ws, pairLanes*words), takeWords(ws, pairLanes*words)
	s, top := ws.Take(pairLanes*pairLanes), ws.Take(pairLanes)
	for r := y.from; r < y.to; r += pairLanes {
		n, at, row := min(pairLanes, y.to-r), r-y.from, y.Q0+r
		pairColumns(o, buf, &f.O, y.QBatch, y.h, row, n)
		do, step := tileRows(&f.DO, y.QBatch, y.h, row, n, halves(doBuf))
		scoresAMXBF16(&s[0], &do[0], step, &o[0], words, n, &top[0])
		for i := range n {
			x.delta[at+i] = s[i*pairLanes+i]
		}
		j.takeDLSE(x.delta[at:], y.QBatch, y.h, row, n)
		j.takeLSE(x.lse[at:], y.QBatch, y.h, row, n)
	}
	j.sumDSink(&x, &y)
	j.clearGradRows(&y)
}

type gradBlock struct {
	gradPanels
	kColumns, vColumns []uint32 // pairs of columns of K and V, [panels][dim/2][lanes]
	k                  packedRows
	q, do              packedRows // of the current tile
	qBuf, doBuf        []uint16
	s, dp              []float32 // [rows][lanes]
	p, ds              []uint32  // P and dS of a panel, as pairs of rows, [rows/2][lanes]
	dsRows             []uint16  // dS of the tile, [rows][tileDSStep]
	wide               []float32 // [gradRows][tileDSStep], float32 dS of some rows of a panel, if dBias is requested
	masks              []uint32  // [rows], a bit for each key of a panel that the row sees
	top                []float32 // [lanes], scratch for row maxima
}

func bwdAMXBF16Block(j *job, ws *pool.Arena, item int) {
	p, f := &j.p, j.args
	dim, vdim, words, vwords := upToTiles(p.Dim), upToTiles(p.VDim), pairWords(p.Dim), pairWords(p.VDim)
	x := gradBlock{
		gradPanels: newGradPanels(j, ws, item, 1), // dK and dQ are scaled at the end
		kColumns:   takeWords(ws, j.keys*words), vColumns: takeWords(ws, j.keys*vwords),
		k: packedRows{pairs: takeWords(ws, pairFloats(p.Dim, j.keys))},
		q: newPackedRows(ws, p.Dim, j.rows), do: newPackedRows(ws, p.VDim, j.rows),
		qBuf: halves(takeWords(ws, j.rows*words)), doBuf: halves(takeWords(ws, j.rows*vwords)),
		s: ws.Take(j.rows * pairLanes), dp: ws.Take(j.rows * pairLanes),
		p: takeWords(ws, j.rows/2*pairLanes), ds: takeWords(ws, j.rows/2*pairLanes),
		dsRows: halves(takeWords(ws, j.rows*tileDSStep(&j.plan)/2)),
		wide:   ws.Take(j.wideFloats()),
		masks:  takeWords(ws, j.rows), top: ws.Take(pairLanes),
	}
	rows, by, buf := ws.Take(pairLanes*max(dim, vdim)), ws.Take(pairLanes), takeWords(ws, pairLanes*max(words, vwords))
	for k := x.from; k < x.to; k += pairLanes {
		n, at := min(pairLanes, x.to-k), k-x.from
		pairColumns(x.kColumns[at*words:][:pairLanes*words], buf[:pairLanes*words], &f.K, x.KVBatch, x.g, x.K0+k, n)
		pairColumns(x.vColumns[at*vwords:][:pairLanes*vwords], buf[:pairLanes*vwords], &f.V, x.KVBatch, x.g, x.K0+k, n)
	}
	x.score.asHalves = true
	x.k.load(&f.K, x.KVBatch, x.g, x.K0+x.from, x.to-x.from)
	avx512Lanes.walk(j, &x.keyRange, &x.gradSum, &x.score, item, func(h, t int, at int64) { x.addTile(j, item, h, t, at) })
	for i := range by {
		by[i] = float32(j.scale)
	}
	x.store(j, &f.DK, x.dk, rows, by)
	x.store(j, &f.DV, x.dv, rows, ones[:])
}

type packedTile struct {
	tileStats
	h, from, n    int
	q, do         []uint16
	qStep, doStep int
}

func (x *gradBlock) addTile(j *job, item, h, t int, at int64) {
	f := j.args
	y := packedTile{tileStats: avx512Lanes.stats(j, x.b, h, t), h: h, from: t * j.rows, n: min(j.rows, x.N-t*j.rows)}
	if x.mask.hidesTile(j, &x.keyRange, &y.tileStats) {
		j.passTile(x.predecessor, item, at)
		return
	}
	y.q, y.qStep = tileRows(&f.Q, x.QBatch, h, x.Q0+y.from, y.n, x.qBuf)
	y.do, y.doStep = tileRows(&f.DO, x.QBatch, h, x.Q0+y.from, y.n, x.doBuf)
	x.q.load(&f.Q, x.QBatch, h, x.Q0+y.from, y.n)
	x.q.transpose()
	x.do.load(&f.DO, x.QBatch, h, x.Q0+y.from, y.n)
	x.do.transpose()
	x.score.setTile(j, &x.keyRange, h, y.from, y.n)
	x.eachPanel(j, item, y.from, y.n, at, func(k int) { x.addPanel(j, &y, k) }, func(lo, hi int) {
		dq, _ := avx512Lanes.gathered(j, &y.tileStats, &x.seqTile, h, t, j.chain(&x.keyRange))
		x.addQueries(j, &y, dq, lo-x.from, upToTiles(hi)-lo)
	})
}

// addPanel computes P and dS of tile y for the panel that begins at key k. It adds Pᵀ dO and dSᵀ Q
// to dV and dK. It processes the rows that see a key of the panel, rounded out to whole steps of
// tileStep rows.
func (x *gradBlock) addPanel(j *job, y *packedTile, k int) {
	p, at, step := &j.p, k-x.from, tileDSStep(&j.plan)
	words, vwords, dim, vdim := pairWords(p.Dim), pairWords(p.VDim), upToTiles(p.Dim), upToTiles(p.VDim)
	lo, n := x.panelRows(y.from, y.n, k)
	if !x.setMasks(j, x.masks, y.h, y.from+lo, n, k) {
		n = 0
	}
	for r := range y.n {
		if r < lo || r >= lo+n {
			clear(x.dsRows[r*step+at:][:pairLanes])
		}
	}
	if n <= 0 {
		return
	}
	pairs, filled := (n+1)/2, upToTiles(n)/2
	if x.score.on {
		x.shapedDots(j, y, lo, at, n, words, vwords)
		x.gradients(j, y, k, lo, n)
	} else {
		x.dots(y, lo, at, n, words, vwords)
		gradientsAMXBF16(&x.p[0], &x.ds[0], &x.dsRows[lo*step+at], step, &x.s[0], &x.dp[0], &x.masks[0], pairs, &y.lse[lo], &y.delta[lo], float32(j.scale))
	}
	clear(x.p[pairs*pairLanes : filled*pairLanes])
	clear(x.ds[pairs*pairLanes : filled*pairLanes])
	dk, dv := x.dk[at*dim:], x.dv[at*vdim:]
	addProductAMXBF16(&dv[0], pairLanes, &halves(x.do.columns)[lo], 2*x.do.step, &x.p[0], pairLanes, vdim, pairLanes, filled)
	addProductAMXBF16(&dk[0], pairLanes, &halves(x.q.columns)[lo], 2*x.q.step, &x.ds[0], pairLanes, dim, pairLanes, filled)
	if x.do.nonFinite {
		x.do.addNonFinite(dv, lo, n, x.p, x.masks)
	}
	if x.q.nonFinite {
		x.q.addNonFinite(dk, lo, n, x.ds, x.masks)
	}
}

// dots sets x.s to Q Kᵀ and x.dp to dO Vᵀ, for rows [r, r+n) of the tile and for one panel. at is
// the index of the panel's first key in the block.
func (x *gradBlock) dots(y *packedTile, r, at, n, words, vwords int) {
	scoresAMXBF16(&x.s[0], &y.q[r*y.qStep], y.qStep, &x.kColumns[at*words], words, n, &x.top[0])
	scoresAMXBF16(&x.dp[0], &y.do[r*y.doStep], y.doStep, &x.vColumns[at*vwords], vwords, n, &x.top[0])
}

// shapedDots does the work of dots, and applies score features to x.s.
func (x *gradBlock) shapedDots(j *job, y *packedTile, r, at, n, words, vwords int) {
	g, k := &x.score, x.from+at
	softcapGrad, bias, lanes := g.operands(j, &x.keyRange, k, r)
	var halves *uint16
	if g.halves != nil {
		halves = &g.halves[r*g.biasStep+at]
	}
	if !g.adjusts || bias != nil && n%2 == 1 { // shapedDotsAMXBF16 would read one bias row after the last
		x.dots(y, r, at, n, words, vwords)
		if g.adjusts {
			avx512Lanes.scoreMod(&x.s[0], pairLanes, n, &x.top[0], softcapGrad, g.scale, g.softcap, bias, g.biasStep, lanes, g.slope, g.distance(&x.keyRange, k, r))
		}
		return
	}
	shapedDotsAMXBF16(&x.s[0], &y.q[r*y.qStep], y.qStep, &x.kColumns[at*words], words, n, softcapGrad, g.scale, g.softcap, bias, halves, g.biasStep, lanes, g.slope, g.distance(&x.keyRange, k, r))
	g.fetchSome()
	scoresAMXBF16(&x.dp[0], &y.do[r*y.doStep], y.doStep, &x.vColumns[at*vwords], vwords, n, &x.top[0])
	g.fetchSome()
}

// gradients computes P and dS in a call with score features or dropout. It processes n rows from
// row lo of the tile on, and the panel that begins at key k. It rounds P and dS to bf16, and stores
// P and dS as pairs of rows in x.p and x.ds. It also stores dS as plain rows in x.dsRows.
func (x *gradBlock) gradients(j *job, y *packedTile, k, lo, n int) {
	g, step, pairs := &x.score, tileDSStep(&j.plan), (n+1)/2
	if g.db.kind != noBias {
		for i := 0; i < n; i += gradRows {
			x.wideGradients(j, y, k, lo, i, min(gradRows, n-i))
		}
		return
	}
	softcapGrad, _, _ := g.operands(j, &x.keyRange, k, lo)
	kept := g.keeps(j, &x.keyRange, k, lo, n)
	rows := &x.dsRows[lo*step+k-x.from]
	if softcapGrad == nil && kept == nil {
		gradientsAMXBF16(&x.p[0], &x.ds[0], rows, step, &x.s[0], &x.dp[0], &x.masks[0], pairs, &y.lse[lo], &y.delta[lo], g.unit)
		return
	}
	shapedGradientsAMXBF16(&x.p[0], &x.ds[0], rows, step, &x.s[0], &x.dp[0], &x.masks[0], pairs, &y.lse[lo], &y.delta[lo], g.unit, kept, g.keep, softcapGrad)
}

// gradRows is the number of rows that wideGradients processes at a time. The float32 P and dS of
// these rows are then still in L1 when wideGradients rounds them.
const gradRows = 64

// wideGradients does the work of the method gradients for n rows, from row lo+i on, if dBias is
// requested. It first stores dS in float32, because dBias is summed in float32.
func (x *gradBlock) wideGradients(j *job, y *packedTile, k, lo, i, n int) {
	step, r, s, pairs := tileDSStep(&j.plan), lo+i, x.s[i*pairLanes:], (n+1)/2
	x.score.gradientsOf(j, &x.keyRange, k, r, n, i, s, x.dp[i*pairLanes:], x.wide, step, x.masks[i:], y.lse[r:], y.delta[r:])
	if n%2 == 1 {
		clear(s[n*pairLanes:][:pairLanes])
		clear(x.wide[n*step:][:pairLanes])
	}
	narrowPairsAVX512BF16(&x.p[i/2*pairLanes], &s[0], pairLanes, pairs)
	narrowPairsAVX512BF16(&x.ds[i/2*pairLanes], &x.wide[0], step, pairs)
	narrowRowsAVX512BF16(&x.dsRows[r*step+k-x.from], &x.wide[0], step, n)
}

// addQueries adds dS K to dQ of the tile. It sums over the keys [at, at+keys), counted from the
// first key of the block.
func (x *gradBlock) addQueries(j *job, y *packedTile, dq []float32, at, keys int) {
	p, step, dqStep := &j.p, tileDSStep(&j.plan), pad(j.p.Dim)
	for from, to := at, 0; from < at+keys; from = to {
		to = at + keys
		if j.hidesByRow() {
			to = min((from+minBlockK)&^(minBlockK-1), to)
		}
		if !x.hidesPart(j, y.h, x.from+from, minBlockK) {
			addProductAMXBF16(&dq[0], dqStep, &x.dsRows[from], step, &x.k.pairs[from/2*p.Dim], p.Dim, upToTiles(y.n), dqStep, (to-from)/2)
		}
	}
	if !x.k.nonFinite {
		return
	}
	x.k.eachNonFinite(at, min(keys, x.k.n-at), func(key, c int, v float32) {
		for r := range y.n {
			if j.sees(&x.seqTile, y.h, y.from+r, x.from+at+key) {
				dq[r*dqStep+c] += half.FromBF16(x.dsRows[r*step+at+key]) * v
			}
		}
	})
}
