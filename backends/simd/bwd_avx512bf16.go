//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// bwd_avx512bf16 computes what bwd_avx512 computes, in the same blocks, tiles and
// order, with VDPBF16PS: each product is of two pairs of bf16, added to a float32.
//
//	S  = K Qᵀ; dP = V dOᵀ        pairs of columns; K and V are read as they lie
//	P  = exp(scale * S - LSE); dS = P (dP - delta), in float32, then rounded
//	dV += P dO; dK += dS Q       pairs of query rows
//	dQᵀ += Kᵀ dS                 pairs of keys
//
// Q and dO are packed once, by columns [dim/2][lanes] and by rows [lanes/2][dim]:
// workspace that has twice their size. K is packed for each block, [keys/2][dim].
// delta is summed by the same instruction in the same order as dP, so that a row
// that sees one key has dS = 0.
//
// A pair is one product, so the last three are taken where all rows of a tile see
// all keys. At the edges of the band they are those of bwd_avx512, in float32,
// with the rows there widened.
//
// The instruction takes denormal numbers for 0.
func (b *Backend) bwdAVX512BF16(ctx context.Context, p flashkit.Problem, f *flashkit.Backward) error {
	j := b.newJob(p)
	j.bwd = *f
	dim, vdim, vwords := pad(p.Dim), pad(p.VDim), pairWords(p.VDim)
	queryTiles := p.Batch * p.Heads * tiles(p.QLen, pairLanes)
	blocks := p.Batch * p.KVHeads * tiles(p.KVLen, bwdBlockK)
	j.shared.reserve(queryTiles * (pairLanes*(2+dim) + packedQueries(&p)))
	if len(j.passed) < blocks {
		j.passed = make([]atomic.Int64, blocks)
	}
	for i := range blocks {
		j.passed[i].Store(0)
	}
	j.parallel(ctx, bwdAVX512BF16Prepare, queryTiles, pairLanes*(vwords+max(pairWords(p.Dim), vwords)))
	perKey := 1 + dim + vdim + 2*pairLanes + dim + dim/2 + pairLanes + pairLanes/2
	j.parallel(ctx, bwdAVX512BF16Block, blocks, bwdBlockK*perKey+pairLanes*(1+dim+vdim))
	j.parallel(ctx, bwdAVX512Finish, queryTiles, pairLanes*(dim+vdim+1))
	return b.release(ctx, j)
}

func bwdAVX512BF16Cost(p flashkit.Problem) time.Duration {
	return cost(p.FLOPs(flashkit.PassBackward), dotRate(), p.Batch*p.KVHeads*tiles(p.KVLen, bwdBlockK))
}

// A pairQueries is a tile of query rows in pairs.
type pairQueries struct {
	q, do         []uint32 // pairs of columns, [dim/2][lanes]
	qRows, doRows []uint32 // pairs of rows, [lanes/2][dim]
}

// packedQueries returns the words of a pairQueries.
func packedQueries(p *flashkit.Problem) int {
	return pairLanes * (pairWords(p.Dim) + pairWords(p.VDim) + (p.Dim+p.VDim+1)/2)
}

// pairsOf returns the place of tile t of query head h, behind the stats of all.
func pairsOf(j *job, b, h, t int) (x pairQueries) {
	p := &j.p
	perHead, size := tiles(p.QLen, pairLanes), packedQueries(p)
	stats := p.Batch * p.Heads * perHead * pairLanes * (2 + pad(p.Dim))
	ws := arena{free: j.shared.all[stats+((b*p.Heads+h)*perHead+t)*size:]}
	x.q, x.do = takeWords(&ws, pairLanes*pairWords(p.Dim)), takeWords(&ws, pairLanes*pairWords(p.VDim))
	x.qRows, x.doRows = takeWords(&ws, pairLanes/2*p.Dim), takeWords(&ws, pairLanes/2*p.VDim)
	return x
}

// bwdAVX512BF16Prepare packs one tile of query rows and sets its stats.
func bwdAVX512BF16Prepare(j *job, ws *arena, item int) {
	p, f := &j.p, &j.bwd
	perHead := tiles(p.QLen, pairLanes)
	b, h, t := item/perHead/p.Heads, item/perHead%p.Heads, item%perHead
	from := t * pairLanes
	n := min(pairLanes, p.QLen-from)
	x, stats := pairsOf(j, b, h, t), avx512Lanes.stats(j, b, h, t)
	o, buf := takeWords(ws, pairLanes*pairWords(p.VDim)), takeWords(ws, pairLanes*max(pairWords(p.Dim), pairWords(p.VDim)))
	pairColumns(x.q, buf, &f.Q, b, h, from, n)
	pairColumns(x.do, buf, &f.DO, b, h, from, n)
	pairColumns(o, buf, &f.O, b, h, from, n)
	pairRows(x.qRows, &f.Q, b, h, from, n)
	pairRows(x.doRows, &f.DO, b, h, from, n)
	dotsAVX512BF16(&stats.delta[0], &x.do[0], &o[0], (p.VDim+1)/2)
	stats.begin(f, b, h, from, n)
}

// A pairBlock is a keyBlock whose products are of pairs.
type pairBlock struct {
	keyBlock
	kPairs  []uint32 // [keys/2][dim]
	p, ds   []uint16 // [keys][lanes]
	dsPairs []uint32 // [keys/2][lanes]
	wideK   []float32
}

func bwdAVX512BF16Block(j *job, ws *arena, item int) {
	p, f := &j.p, &j.bwd
	x := pairBlock{keyBlock: avx512Lanes.newKeyBlock(j, ws, item)}
	x.kPairs = takeWords(ws, bwdBlockK/2*pad(p.Dim))
	x.p, x.ds = halves(takeWords(ws, bwdBlockK*pairLanes/2)), halves(takeWords(ws, bwdBlockK*pairLanes/2))
	x.dsPairs = takeWords(ws, bwdBlockK/2*pairLanes)
	x.wideK = ws.take(bwdBlockK * pad(p.Dim))
	x.qRows, x.doRows = ws.take(pairLanes*pad(p.Dim)), ws.take(pairLanes*pad(p.VDim))
	pairRows(x.kPairs, &f.K, x.b, x.g, x.from, x.to-x.from)
	avx512Lanes.walk(j, &x.keyBlock, item, func(h, t int, at int64) { x.addTile(j, item, h, t, at) })
	avx512Lanes.storeBlock(j, &x.keyBlock)
}

// addTile takes tile t of query head h into the block of an item. at is the
// tile's place in the order.
func (x *pairBlock) addTile(j *job, item, h, t int, at int64) {
	p := &j.p
	row := t * pairLanes
	n := min(pairLanes, p.QLen-row)
	lo, _ := p.Keys(row)
	_, hi := p.Keys(row + n - 1)
	lo, hi = max(lo, x.from), min(hi, x.to)
	if lo >= hi {
		return
	}
	y, stats := pairsOf(j, x.b, h, t), avx512Lanes.stats(j, x.b, h, t)
	for from := lo; from < hi; {
		until, whole := wholePart(p, row, n, from, hi)
		x.gradients(j, &y, &stats, row, n, from, until-from, whole)
		// dQ is last: the block before this one may still be at it.
		if whole {
			x.addWhole(p, &y, from, until-from, n)
		} else {
			x.addMasked(j, h, row, n, from, until-from)
		}
		if !j.waitFor(item-p.Batch*p.KVHeads, at) {
			return // canceled
		}
		x.addQueries(j, &stats, from, until-from, whole)
		from = until
	}
	j.passed[item].Store(at + 1)
}

// gradients sets s to P and dp to dS, for keys from a given one on.
func (x *pairBlock) gradients(j *job, y *pairQueries, stats *rowStats, row, n, from, keys int, whole bool) {
	p, k, v := &j.p, &j.bwd.K, &j.bwd.V
	for c := range keys {
		x.masks[c] = laneMask(0, n, pairLanes)
		if !whole {
			first, last := p.Queries(from + c)
			x.masks[c] = laneMask(first-row, last-row, n)
		}
	}
	scoresAVX512BF16(&x.s[0], &k.Uint16s()[k.Offset(x.b, x.g, from)], rowStep(k), &y.q[0], p.Dim, keys, &x.hidden[0])
	scoresAVX512BF16(&x.dp[0], &v.Uint16s()[v.Offset(x.b, x.g, from)], rowStep(v), &y.do[0], p.VDim, keys, &x.hidden[0])
	gradientsAVX512(&x.s[0], &x.dp[0], &x.masks[0], keys, &stats.lse[0], &stats.delta[0], float32(j.scale))
}

// addWhole adds to dK and dV of keys that all n rows see.
func (x *pairBlock) addWhole(p *flashkit.Problem, y *pairQueries, from, keys, n int) {
	narrowKeysAVX512BF16(&x.p[0], &x.s[0], keys)
	narrowKeysAVX512BF16(&x.ds[0], &x.dp[0], keys)
	outerPairs(x.dv[(from-x.from)*pad(p.VDim):], x.p, y.doRows, keys, n, p.VDim)
	outerPairs(x.dk[(from-x.from)*pad(p.Dim):], x.ds, y.qRows, keys, n, p.Dim)
}

// outerPairs adds the product of a, [keys][lanes], and n rows of B, [n/2][dim] in
// pairs, to c, [keys][padded dim].
func outerPairs(c []float32, a []uint16, b []uint32, keys, n, dim int) {
	for x := 0; x < dim; x += pairLanes {
		outerAVX512BF16(&c[x], pad(dim), &a[0], &b[x], dim, keys, (n+1)/2, laneMask(0, pairLanes, dim-x))
	}
}

// addMasked does the same with keys that some rows do not see, in float32.
func (x *pairBlock) addMasked(j *job, h, row, n, from, keys int) {
	p, isa := &j.p, &avx512Lanes
	q, qStep := isa.view(&j.bwd.Q, x.b, h, row, n, x.qRows)
	do, doStep := isa.view(&j.bwd.DO, x.b, h, row, n, x.doRows)
	dv, dk := x.dv[(from-x.from)*pad(p.VDim):], x.dk[(from-x.from)*pad(p.Dim):]
	if finite(q, qStep, n, p.Dim) && finite(do, doStep, n, p.VDim) {
		isa.outerAll(dv, x.s, do, doStep, keys, n, p.VDim)
		isa.outerAll(dk, x.dp, q, qStep, keys, n, p.Dim)
	} else {
		isa.outerSeen(dv, x.s, do, doStep, x.masks[:keys], p.VDim)
		isa.outerSeen(dk, x.dp, q, qStep, x.masks[:keys], p.Dim)
	}
}

// addQueries adds to dQ.
func (x *pairBlock) addQueries(j *job, stats *rowStats, from, keys int, whole bool) {
	p := &j.p
	if !whole {
		k, step := avx512Lanes.view(&j.bwd.K, x.b, x.g, from, keys, x.wideK)
		addValuesMaskedAVX512(&stats.dq[0], &k[0], step, &x.dp[0], keys, p.Dim, &ones[0], &x.masks[0])
		return
	}
	if keys%2 == 1 {
		clear(x.dp[keys*pairLanes:][:pairLanes])
	}
	pairs := (keys + 1) / 2
	pairKeysAVX512BF16(&x.dsPairs[0], &x.dp[0], pairs)
	addValuesAVX512BF16(&stats.dq[0], &x.kPairs[(from-x.from)/2*p.Dim], p.Dim, &x.dsPairs[0], pairs, p.Dim, &ones[0])
}
