//go:build amd64 && !purego

package simd

import (
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
)

// bwd_avx512bf16 computes like bwd_avx512, in the same blocks, panels, tiles and order, but with
// VDPBF16PS. In each lane, this instruction multiplies a pair of bf16 by another pair, element by
// element, and adds both products to a float32. A pair holds two neighbors in a row or in a column
// of a matrix. The right column names these pairs:
//
//	for each panel:
//		S  = Q Kᵀ; dP = dO Vᵀ                  pairs of columns of Q and dO
//		P  = exp(scale * S - LSE); dS = P (dP - delta)
//		dV += Pᵀ dO; dK += dSᵀ Q               pairs of rows of Q and dO
//	dQ += dS K                                 pairs of keys
//
// P and dS are computed in float32, then rounded. The factor scale of dS is applied at the end, to
// dK and dQ. The products for S and dP read Q and dO in place. The products for dV and dK read
// pairs of rows of Q and dO. K and V are packed once per block: as pairs of columns, and K also as
// pairs of rows. The same instruction sums delta and dP, in the same order. So dS is exactly 0 in a
// row that sees one key.
//
// The instruction cannot skip one element of a pair. So the products for dV, dK and dQ use
// VDPBF16PS only for panels that all rows of the tile see. At the edges of the band, the routines
// of bwd_avx512 compute these three products in float32.

// bwdAVX512BF16Plan calls planBackward, and adds workspace for packed Q, K, V and dO.
func bwdAVX512BF16Plan(pl *plan) {
	p := &pl.p
	words, vwords := pairWords(p.Dim), pairWords(p.VDim)
	avx512Lanes.planBackward(pl)
	pl.work[1].Floats += pl.keys*(words+vwords+pad(p.Dim)/2) + pairLanes*max(words, vwords) +
		pl.rows/2*(p.Dim+p.VDim+2*pairLanes+dsStep(pl))
}

func bwdAVX512BF16Times(pl *plan) [3]timedPhase {
	pace := pairPace(bwdPairPace)
	return pace.backward(pl.call, pairLanes, edgeGroup, avx512Lanes.cut(pl))
}

func bwdAVX512BF16Prepare(j *job, ws *pool.Arena, item int) {
	avx512Lanes.bwdPrepare(j, ws, item)
	ws.Reset()
	p, f := &j.p, j.args
	var y seqTile
	t := y.findRows(&j.plan, item)
	x := avx512Lanes.stats(j, y.b, y.h, t)
	size := pairLanes * pairWords(p.VDim)
	do, o, buf := takeWords(ws, size), takeWords(ws, size), takeWords(ws, size)
	for r := y.from; r < y.to; r += pairLanes {
		n, delta, row := min(pairLanes, y.to-r), x.delta[r-y.from:], y.Q0+r
		pairColumns(do, buf, &f.DO, y.QBatch, y.h, row, n)
		pairColumns(o, buf, &f.O, y.QBatch, y.h, row, n)
		dotsAVX512BF16(&delta[0], &do[0], &o[0], (p.VDim+1)/2)
		j.takeDLSE(delta, y.QBatch, y.h, row, n)
	}
	j.sumDSink(&x, &y)
}

type pairBlock struct {
	keyBlock
	kColumns, vColumns []uint32 // pairs of columns, [panels][dim/2][lanes]
	kPairs             []uint32 // pairs of keys, [keys/2][dim]
	qPairs, doPairs    []uint32 // pairs of rows of the current tile, [rows/2][dim]
	pPairs, dsPairs    []uint32 // pairs of rows of a panel, [rows/2][lanes]
	ds16               []uint16 // dS as bf16, [rows][dsStep]
}

func bwdAVX512BF16Block(j *job, ws *pool.Arena, item int) {
	p, f := &j.p, j.args
	words, vwords := pairWords(p.Dim), pairWords(p.VDim)
	x := pairBlock{
		keyBlock: avx512Lanes.newBlock(j, ws, item, 1), // dK and dQ are scaled at the end
		kColumns: takeWords(ws, j.keys*words), vColumns: takeWords(ws, j.keys*vwords),
		kPairs: takeWords(ws, j.keys/2*pad(p.Dim)),
		qPairs: takeWords(ws, j.rows/2*p.Dim), doPairs: takeWords(ws, j.rows/2*p.VDim),
		pPairs: takeWords(ws, j.rows/2*pairLanes), dsPairs: takeWords(ws, j.rows/2*pairLanes),
		ds16: halves(takeWords(ws, j.rows*dsStep(&j.plan)/2)),
	}
	buf := takeWords(ws, pairLanes*max(words, vwords))
	for k := x.from; k < x.to; k += pairLanes {
		n, at := min(pairLanes, x.to-k), k-x.from
		pairColumns(x.kColumns[at*words:][:pairLanes*words], buf[:pairLanes*words], &f.K, x.KVBatch, x.g, x.K0+k, n)
		pairColumns(x.vColumns[at*vwords:][:pairLanes*vwords], buf[:pairLanes*vwords], &f.V, x.KVBatch, x.g, x.K0+k, n)
	}
	if pairRows(x.kPairs, &f.K, x.KVBatch, x.g, x.K0+x.from, x.to-x.from); x.cleared {
		clearNonFinite(x.kPairs)
	}
	avx512Lanes.walk(j, &x.keyRange, &x.gradSum, &x.score, item, func(h, t int, at int64) { x.addTile(j, item, h, t, at) })
	scalar.Scale(x.dk, float32(j.scale))
	avx512Lanes.storeBlock(j, &x.keyBlock)
}

func bwdAVX512BF16Finish(j *job, _ *pool.Arena, item int) {
	var y seqTile
	t := y.findRows(&j.plan, item)
	x := avx512Lanes.stats(j, y.b, y.h, t)
	avx512Lanes.addChains(j, &x, &y, t)
	scalar.Scale(x.dq[:(y.to-y.from)*j.dqStep], float32(j.scale))
	avx512Lanes.storeSums(j, &x, &y)
}

func (x *pairBlock) addTile(j *job, item, h, t int, at int64) {
	p, f, isa := &j.p, j.args, &avx512Lanes
	from, stats := t*j.rows, isa.stats(j, x.b, h, t)
	if x.mask.hidesTile(j, &x.keyRange, &stats) {
		j.passTile(x.predecessor, item, at)
		return
	}
	x.mask.setGroups(j, &x.keyRange, h, from)
	y := rowTile{tileStats: stats, h: h, from: from, to: min(from+j.rows, x.N)}
	n := y.to - from
	wholeFrom, wholeTo := x.wholePanels(&y)
	if wholeFrom < wholeTo {
		pairRows(x.qPairs, &f.Q, x.QBatch, h, x.Q0+from, n)
		pairRows(x.doPairs, &f.DO, x.QBatch, h, x.Q0+from, n)
	}
	if x.from < wholeFrom || wholeTo < x.to {
		y.q, y.qStep = isa.rows(&f.Q, x.QBatch, h, x.Q0+from, n, isa.width(j.p.Dim), x.q)
		y.do, y.doStep = isa.rows(&f.DO, x.QBatch, h, x.Q0+from, n, isa.width(j.p.VDim), x.do)
	}
	if isa.setOperands(j, &x.keyBlock, &y); y.cleared {
		clearNonFinite(x.qPairs)
		clearNonFinite(x.doPairs)
	}
	x.score.setTile(j, &x.keyRange, h, from, n)
	for k := x.from; k < x.to; k += pairLanes {
		if j.Canceled() {
			return
		}
		y.whole = wholeFrom <= k && k < wholeTo
		x.addPanel(j, &y, k, min(pairLanes, x.to-k))
	}
	if !j.waitFor(x.predecessor, at) {
		return // canceled
	}
	y.whole = false // addRows adds the panels that are not whole
	dq, step := isa.gathered(j, &y.tileStats, &x.seqTile, h, t, j.chain(&x.keyRange))
	isa.addRows(j, &x.keyBlock, &y, dq, step, x.from, wholeFrom, y.group)
	for k, end := wholeFrom, 0; k < wholeTo; k = end {
		end = wholeTo
		if j.hidesByRow() {
			end = min((k+minBlockK)&^(minBlockK-1), end)
		}
		part := k &^ (minBlockK - 1)
		if lo := k - x.from; !x.mask.hidesPart(j, &x.seqTile, h, part, part+minBlockK) {
			addPairs(addProductAVX512BF16, addProductMaskedAVX512BF16, dq, x.ds16[lo:], dsStep(&j.plan), x.kPairs[lo/2*p.Dim:], n, (end-k+1)/2, p.Dim)
		}
	}
	isa.addRows(j, &x.keyBlock, &y, dq, step, wholeTo, x.to, y.group)
	isa.addNonFiniteRows(j, &x.keyBlock, &y, dq, step)
	j.progress[item].Store(at + 1)
}

// wholePanels returns the keys [from, to) of the panels that are inside the band for all rows of
// the tile. Panels begin at multiples of pairLanes, whatever the size of blocks.
func (x *pairBlock) wholePanels(y *rowTile) (from, to int) {
	_, to = x.Keys(y.from)
	from, _ = x.Keys(y.to - 1)
	from = ceilDiv(from, pairLanes) * pairLanes
	if to < x.M {
		to = to / pairLanes * pairLanes
	}
	if from, to = max(from, x.from), min(to, x.to); from < to {
		return from, to
	}
	return x.to, x.to
}

func (x *pairBlock) addPanel(j *job, y *rowTile, k, keys int) {
	p, q, do, h := &j.p, &j.args.Q, &j.args.DO, y.h
	lo, hi := avx512Lanes.seen(j, &x.keyBlock, y, k, keys)
	at := k - x.from
	if lo >= hi {
		for r := 0; y.whole && r < y.to-y.from; r++ { // mask or ranges hide the panel
			clear(x.ds16[r*dsStep(&j.plan)+at:][:pairLanes])
		}
		return
	}
	if y.whole { // the ranges may hide the panel from the first and last rows
		lo, hi = 0, y.to-y.from
	}
	s, dp, ds := x.s[lo*pairLanes:], x.dp[lo*pairLanes:], x.ds[lo*dsStep(&j.plan)+at:]
	scoresAVX512BF16(&s[0], &q.Uint16s()[q.Offset(x.QBatch, h, x.Q0+y.from+lo)], rowStep(q), &x.kColumns[at*pairWords(p.Dim)], p.Dim, hi-lo, &x.top[0])
	x.score.fetchSome()
	scoresAVX512BF16(&dp[0], &do.Uint16s()[do.Offset(x.QBatch, h, x.Q0+y.from+lo)], rowStep(do), &x.vColumns[at*pairWords(p.VDim)], p.VDim, hi-lo, &x.top[0])
	x.score.fetchSome()
	if x.score.on {
		x.score.gradients(j, &x.keyRange, k, lo, hi-lo, s, dp, ds, dsStep(&j.plan), x.masks[lo:], y.lse[lo:], y.delta[lo:])
	} else {
		gradientsAVX512BF16(&s[0], &dp[0], &ds[0], dsStep(&j.plan), &x.masks[lo], hi-lo, &y.lse[lo], &y.delta[lo], float32(j.scale))
	}
	if !y.whole {
		avx512Lanes.addKeys(j, &x.keyBlock, y, k, keys, y.group, lo, hi)
		avx512Lanes.addNonFiniteKeys(j, &x.keyBlock, y, k, lo, hi)
		return
	}
	n := hi
	if n%2 == 1 {
		clear(s[n*pairLanes:][:pairLanes])
		clear(ds[n*dsStep(&j.plan):][:pairLanes])
	}
	narrowPairsAVX512BF16(&x.pPairs[0], &s[0], pairLanes, (n+1)/2)
	narrowPairsAVX512BF16(&x.dsPairs[0], &ds[0], dsStep(&j.plan), (n+1)/2)
	narrowRowsAVX512BF16(&x.ds16[at], &ds[0], dsStep(&j.plan), n)
	whole, masked := addProductTAVX512BF16, addProductTMaskedAVX512BF16
	addPairs(whole, masked, x.dv[at*p.VDim:], x.pPairs, pairLanes, x.doPairs, keys, (n+1)/2, p.VDim)
	addPairs(whole, masked, x.dk[at*p.Dim:], x.dsPairs, pairLanes, x.qPairs, keys, (n+1)/2, p.Dim)
	avx512Lanes.addNonFiniteKeys(j, &x.keyBlock, y, k, lo, hi)
}

// addPairs adds the product of a and b to c. It calls the function whole for each group of
// pairLanes columns, and the function masked for the columns that remain. a and b hold pairs of
// bf16, and b is [pairs][columns].
func addPairs[T uint16 | uint32](
	whole func(c *float32, cStep int, a *T, aStep int, b *uint32, bStep, rows, pairs int),
	masked func(c *float32, cStep int, a *T, aStep int, b *uint32, bStep, rows, pairs int, columns uint32),
	c []float32, a []T, aStep int, b []uint32, rows, pairs, columns int,
) {
	for x := 0; x < columns; x += pairLanes {
		if columns-x < pairLanes {
			masked(&c[x], columns, &a[0], aStep, &b[x], columns, rows, pairs, laneMask(0, pairLanes, columns-x))
		} else {
			whole(&c[x], columns, &a[0], aStep, &b[x], columns, rows, pairs)
		}
	}
}
