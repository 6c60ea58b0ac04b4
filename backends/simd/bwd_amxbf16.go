//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// bwd_amxbf16 computes what bwd_avx512bf16 computes, in the same blocks, panels,
// tiles and order, with AMX:
//
//	for each panel:
//		S  = Q Kᵀ; dP = dO Vᵀ                  rows of Q and dO as they lie
//		P  = exp(scale * S - LSE); dS = P (dP - delta)
//		dVᵀ += dOᵀ P; dKᵀ += Qᵀ dS             pairs of rows of P and dS
//	dQ += dS K                                 rows of dS, pairs of keys
//
// Keys are in the lanes of all but dQ. Q and dO are transposed once for a tile, dKᵀ
// and dVᵀ once at the end. P and dS are float32, then rounded; the scale of dS comes
// at the end. delta is the diagonal of dO Oᵀ: summed by the instruction of dP in its
// order, so that a row that sees one key has dS = 0.
//
// What a row does not see has the weight 0 in P and dS.
func (b *Backend) bwdAMXBF16(ctx context.Context, c *flashkit.Call) error {
	return b.bwdLanes(ctx, c, &avx512Lanes, bwdAMXBF16Plan, bwdAMXBF16Prepare, bwdAMXBF16Block, bwdAVX512BF16Finish)
}

const tileRowsBwd = 256 // query rows of a tile: products have few calls, and sums stay in tiles

func bwdAMXBF16Plan(pl *plan) (tile, block phase) {
	p := &pl.p
	pl.planBlocks(max(tileStep, min(tileRowsBwd, upToTiles(p.QLen))), bwdBlockK, minBlockK)
	dim, vdim, words, vwords := upToTiles(p.Dim), upToTiles(p.VDim), pairWords(p.Dim), pairWords(p.VDim)
	return pl.bwdPhases(3*pairLanes*vwords+pairLanes*(pairLanes+1),
		pl.gradFloats(dim, vdim)+pl.keys*(words+vwords)+pairFloats(p.Dim, pl.keys)+
			packedFloats(p.Dim, pl.rows)+packedFloats(p.VDim, pl.rows)+pl.rows*(words+vwords)+
			pl.rows*(3*pairLanes+tileDSStep(pl)/2+1)+pairLanes*(max(dim, vdim)+max(words, vwords)+2))
}

// tileDSStep is the distance between rows of dS: whole cache lines, and no power of
// two, so that the rows of a tile do not fall on the same ones.
func tileDSStep(pl *plan) int { return pl.keys + tileStep }

func bwdAMXBF16Cost(p flashkit.Problem) time.Duration {
	f := bwdAMXBF16Times(p)
	return cost(f[:]...)
}

func bwdAMXBF16Times(p flashkit.Problem) [3]timedPhase {
	pl := newPlan(p)
	tile, block := bwdAMXBF16Plan(pl)
	return bwdTilePace.backward(&p, pairLanes, tileStep, avx512Lanes.cut(pl, tile, block))
}

// bwdAMXBF16Prepare sets the stats of one tile of query rows, and its dQ to 0.
func bwdAMXBF16Prepare(j *job, ws *arena, item int) {
	p, f := &j.p, j.args
	b, h, t := j.queryTileOf(item)
	x, words := avx512Lanes.stats(j, b, h, t), pairWords(p.VDim)
	avx512Lanes.clearSums(j, &x, b, h, t)
	o, buf, doBuf := takeWords(ws, pairLanes*words), takeWords(ws, pairLanes*words), takeWords(ws, pairLanes*words)
	s, top := ws.take(pairLanes*pairLanes), ws.take(pairLanes)
	for r := t * j.rows; r < min((t+1)*j.rows, p.QLen); r += pairLanes {
		n, at := min(pairLanes, p.QLen-r), r-t*j.rows
		pairColumns(o, buf, &f.O, b, h, r, n)
		do, step := tileRows(&f.DO, b, h, r, n, halves(doBuf))
		scoresAMXBF16(&s[0], &do[0], step, &o[0], words, n, &top[0])
		for i := range n {
			x.delta[at+i] = s[i*pairLanes+i]
		}
		j.takeDLSE(x.delta[at:], b, h, r, n)
		j.takeLSE(x.lse[at:], b, h, r, n)
	}
}

// A gradBlock is the workspace and the state of one item.
type gradBlock struct {
	gradPanels
	kColumns, vColumns []uint32 // [panels][dim/2][lanes]
	k                  packedRows
	q, do              packedRows // a tile
	qBuf, doBuf        []uint16
	s, dp              []float32 // [rows][lanes]
	p, ds              []uint32  // a panel, [rows/2][lanes]
	dsRows             []uint16  // [rows][tileDSStep]
	masks              []uint32  // [rows], the keys of a panel that a row sees
	top                []float32 // [lanes], of no use
}

func bwdAMXBF16Block(j *job, ws *arena, item int) {
	p, f := &j.p, j.args
	dim, vdim, words, vwords := upToTiles(p.Dim), upToTiles(p.VDim), pairWords(p.Dim), pairWords(p.VDim)
	x := gradBlock{
		gradPanels: newGradPanels(j, ws, item),
		kColumns:   takeWords(ws, j.keys*words), vColumns: takeWords(ws, j.keys*vwords),
		k: packedRows{pairs: takeWords(ws, pairFloats(p.Dim, j.keys))},
		q: newPackedRows(ws, p.Dim, j.rows), do: newPackedRows(ws, p.VDim, j.rows),
		qBuf: halves(takeWords(ws, j.rows*words)), doBuf: halves(takeWords(ws, j.rows*vwords)),
		s: ws.take(j.rows * pairLanes), dp: ws.take(j.rows * pairLanes),
		p: takeWords(ws, j.rows/2*pairLanes), ds: takeWords(ws, j.rows/2*pairLanes),
		dsRows: halves(takeWords(ws, j.rows*tileDSStep(&j.plan)/2)),
		masks:  takeWords(ws, j.rows), top: ws.take(pairLanes),
	}
	rows, by, buf := ws.take(pairLanes*max(dim, vdim)), ws.take(pairLanes), takeWords(ws, pairLanes*max(words, vwords))
	for k := x.from; k < x.to; k += pairLanes {
		n, at := min(pairLanes, x.to-k), k-x.from
		pairColumns(x.kColumns[at*words:][:pairLanes*words], buf[:pairLanes*words], &f.K, x.b, x.g, k, n)
		pairColumns(x.vColumns[at*vwords:][:pairLanes*vwords], buf[:pairLanes*vwords], &f.V, x.b, x.g, k, n)
	}
	x.k.load(&f.K, x.b, x.g, x.from, x.to-x.from)
	avx512Lanes.walk(j, x.keyRange, &x.gradSum, item, func(h, t int, at int64) { x.addTile(j, item, h, t, at) })
	for i := range by {
		by[i] = float32(j.scale)
	}
	x.store(j, &f.DK, x.dk, rows, by)
	x.store(j, &f.DV, x.dv, rows, ones[:])
}

// A packedTile is a tile of query rows on its way through a block of keys.
type packedTile struct {
	tileStats
	from, n       int
	q, do         []uint16
	qStep, doStep int
}

// addTile takes tile t of query head h into the block of an item. at is the
// tile's place in the order of all blocks.
func (x *gradBlock) addTile(j *job, item, h, t int, at int64) {
	p, f := &j.p, j.args
	y := packedTile{tileStats: avx512Lanes.stats(j, x.b, h, t), from: t * j.rows, n: min(j.rows, p.QLen-t*j.rows)}
	y.q, y.qStep = tileRows(&f.Q, x.b, h, y.from, y.n, x.qBuf)
	y.do, y.doStep = tileRows(&f.DO, x.b, h, y.from, y.n, x.doBuf)
	x.q.load(&f.Q, x.b, h, y.from, y.n)
	x.q.transpose()
	x.do.load(&f.DO, x.b, h, y.from, y.n)
	x.do.transpose()
	x.eachPanel(j, item, y.from, y.n, at, func(k int) { x.addPanel(j, &y, k) }, func(lo, hi int) {
		dq, _ := avx512Lanes.gathered(j, &y.tileStats, x.b, h, t, j.chain(x.keyRange))
		x.addQueries(j, &y, dq, lo-x.from, upToTiles(hi)-lo)
	})
}

// addPanel computes P and dS of a tile and the keys from k on, and adds to their
// dK and dV. Of the rows it takes whole steps, and only those that see a key.
func (x *gradBlock) addPanel(j *job, y *packedTile, k int) {
	p, at, step := &j.p, k-x.from, tileDSStep(&j.plan)
	words, vwords, dim, vdim := pairWords(p.Dim), pairWords(p.VDim), upToTiles(p.Dim), upToTiles(p.VDim)
	lo, n := x.panelRows(p, y.from, y.n, k)
	for r := range y.n {
		if r < lo || r >= lo+n {
			clear(x.dsRows[r*step+at:][:pairLanes])
		}
	}
	if n <= 0 {
		return
	}
	x.setMasks(p, x.masks, y.from+lo, n, k)
	scoresAMXBF16(&x.s[0], &y.q[lo*y.qStep], y.qStep, &x.kColumns[at*words], words, n, &x.top[0])
	scoresAMXBF16(&x.dp[0], &y.do[lo*y.doStep], y.doStep, &x.vColumns[at*vwords], vwords, n, &x.top[0])
	pairs, filled := (n+1)/2, upToTiles(n)/2
	gradientsAMXBF16(&x.p[0], &x.ds[0], &x.dsRows[lo*step+at], step, &x.s[0], &x.dp[0], &x.masks[0], pairs, &y.lse[lo], &y.delta[lo], float32(j.scale))
	clear(x.p[pairs*pairLanes : filled*pairLanes])
	clear(x.ds[pairs*pairLanes : filled*pairLanes])
	dk, dv := x.dk[at*dim:], x.dv[at*vdim:]
	addProductAMXBF16(&dv[0], pairLanes, &halves(x.do.columns)[lo], 2*x.do.step, &x.p[0], pairLanes, vdim, pairLanes, filled)
	addProductAMXBF16(&dk[0], pairLanes, &halves(x.q.columns)[lo], 2*x.q.step, &x.ds[0], pairLanes, dim, pairLanes, filled)
	if x.do.wild {
		x.do.addWild(dv, lo, n, x.p, x.masks)
	}
	if x.q.wild {
		x.q.addWild(dk, lo, n, x.ds, x.masks)
	}
}

// addQueries adds what so many keys, from a given one on, contribute to dQ of the
// tile.
func (x *gradBlock) addQueries(j *job, y *packedTile, dq []float32, at, keys int) {
	p, step, dqStep := &j.p, tileDSStep(&j.plan), pad(j.p.Dim)
	addProductAMXBF16(&dq[0], dqStep, &x.dsRows[at], step, &x.k.pairs[at/2*p.Dim], p.Dim, upToTiles(y.n), dqStep, keys/2)
	if !x.k.wild {
		return
	}
	x.k.eachWild(at, min(keys, x.k.n-at), func(key, c int, v float32) {
		for r := range y.n {
			if from, to := p.Keys(y.from + r); from <= x.from+at+key && x.from+at+key < to {
				dq[r*dqStep+c] += half.FromBF16(x.dsRows[r*step+at+key]) * v
			}
		}
	})
}
