package simd

import (
	"context"

	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
)

// bwd_generic recomputes, for each query row i and each key j that this row sees,
//
//	P  = exp(S - LSE[i]),  S = scale * Q[i]·K[j], changed by the score features
//	dS = P * (Z * dO[i]·V[j] - delta[i]),  delta[i] = dO[i]·O[i] - dLSE[i]
//
// and sums, in runs of portableRun rows or keys,
//
//	dV[j] += Z * P * dO[i];  dK[j] += scale * dS * Q[i];  dQ[i] += scale * dS * K[j]
//
// Z is 1, or the factor of dropout. (Dao et al. 2022, appendix B.2.) An item is one of:
//
//	a tile of keys: the item visits the query rows that see the keys, and writes dK and dV of the keys
//	a tile of query rows: the item visits the keys that the rows see, and writes dQ of the rows
//	a tile of a DBias with shared elements: the item visits all pairs of a row and a key that share an element
//	a head of DSink: the item visits all query rows of the head
//
// No two items add to the same sum, so no item adds atomically or waits. The price is that P
// and dP are computed twice: seven matrix products instead of five.
func runBwdGeneric(ctx context.Context, j *job) {
	j.cutRows()
	j.cutTiles(&j.byKey, false, tileK, items.Order{Heads: j.p.KVHeads, LongestFirst: true})
	j.parallel(ctx, bwdGenericItem, j.work[0])
}

// bwdGenericItem runs an item. Items of a DBias with shared elements come first: they are the longest.
func bwdGenericItem(j *job, ws *pool.Arena, item int) {
	x := &j.portable
	var t seqTile
	switch {
	case item < x.biasItems:
		j.biasTile(ws, item)
	case item < x.biasItems+x.keyItems:
		t.findKeys(&j.plan, item-x.biasItems)
		j.keyGradients(ws, t)
	case item < x.biasItems+x.keyItems+x.queryItems:
		t.findRows(&j.plan, item-x.biasItems-x.keyItems)
		j.queryGradients(ws, t)
	default:
		j.sinkGradient(ws, item-x.biasItems-x.keyItems-x.queryItems)
	}
}

func (j *job) keyGradients(ws *pool.Arena, t seqTile) {
	p, f, n := &j.p, j.args, t.to-t.from
	var x gradPairs
	x.begin(j, ws)
	run, past := twoSums(ws, n*(p.Dim+p.VDim))
	dk, dv := run[:n*p.Dim], run[n*p.Dim:]
	m := pairMatrix{prob: ws.Take(j.portable.rows * tileK), ds: ws.Take(j.portable.rows * tileK)}
	first, last := t.rowsSeen()
	if first < last {
		x.keys.load(j, &t.Seq, t.b, t.g, t.from, n)
	}
	group, runRows := p.Heads/p.KVHeads, 0
	for h := t.g * group; first < last && h < (t.g+1)*group; h++ {
		for q0 := first; q0 < last; q0 += tileQ {
			if runRows += tileQ; runRows%portableRun == 0 {
				addRun(past, run)
			}
			q1 := min(q0+tileQ, last)
			x.setRows(j, &t.Seq, t.b, h, q0, q1)
			for i := q0; i < q1; i++ {
				if j.Canceled() {
					return
				}
				lo, hi := t.Keys(i)
				keys, prob, ds := x.pairs(i, i-q0, t.from, max(lo, t.from), min(hi, t.to))
				m.setRow(i-q0, keys, prob, x.s.uncapped(ds))
			}
			for c := range n {
				if j.Canceled() {
					return
				}
				rows, prob, ds := m.column(c, q1-q0)
				scalar.AddRows(dv[c*p.VDim:][:p.VDim], prob, x.rows.do, x.rows.doStep, rows)
				scalar.AddRows(dk[c*p.Dim:][:p.Dim], ds, x.rows.q, x.rows.qStep, rows)
			}
		}
	}
	addRun(run, past)
	scalar.Scale(dk, float32(j.scale))
	for c := range n {
		store(&f.DK, f.DK.Offset(t.KVBatch, t.g, t.K0+t.from+c), dk[c*p.Dim:][:p.Dim])
		store(&f.DV, f.DV.Offset(t.KVBatch, t.g, t.K0+t.from+c), dv[c*p.VDim:][:p.VDim])
	}
	j.clearGradKeys(&t)
}

func (t *seqTile) rowsSeen() (first, last int) {
	if t.from == t.to {
		return 0, 0
	}
	first, _ = t.Queries(t.from)
	_, last = t.Queries(t.to - 1)
	return first, last
}

// queryGradients writes dQ of one tile of query rows. It also writes these rows of DBias if each pair
// of a row and a key has its own element.
func (j *job) queryGradients(ws *pool.Arena, t seqTile) {
	p, f, rows := &j.p, j.args, t.to-t.from
	var x gradPairs
	x.begin(j, ws)
	dq, past := twoSums(ws, rows*p.Dim)
	x.setRows(j, &t.Seq, t.b, t.h, t.from, t.to)
	for i := t.from; j.portable.ownBias && i < t.end; i++ { // the elements of keys that the row sees are written below
		clearElements(&f.DBias, f.DBias.Offset(t.b, t.h, i), f.DBias.Shape()[3])
	}
	first, last := t.keysSeen()
	for k0 := first; k0 < last; k0 += tileK {
		if (k0-first)%portableRun == 0 {
			addRun(past, dq)
		}
		k1 := min(k0+tileK, last)
		x.keys.load(j, &t.Seq, t.b, t.g, k0, k1-k0)
		for r := range rows {
			if j.Canceled() {
				return
			}
			i := t.from + r
			lo, hi := t.Keys(i)
			keys, _, ds := x.pairs(i, r, k0, max(lo, k0), min(hi, k1))
			if j.portable.ownBias {
				scatter(&f.DBias, f.DBias.Offset(t.b, t.h, i)+k0, keys, ds)
			}
			scalar.AddRows(dq[r*p.Dim:][:p.Dim], x.s.uncapped(ds), x.keys.k, x.keys.kStep, keys)
		}
	}
	addRun(dq, past)
	scalar.Scale(dq, float32(j.scale))
	for r := range rows {
		store(&f.DQ, f.DQ.Offset(t.QBatch, t.h, t.Q0+t.from+r), dq[r*p.Dim:][:p.Dim])
	}
	j.clearGradRows(&t)
}

func planBwdGeneric(pl *plan) {
	x, p, biasFloats := &pl.portable, &pl.p, 0.0
	switch pl.biasKind() {
	case ownBias:
		x.ownBias = true
	case pairBias, rowBias:
		s := pl.call.Args.DBias.Shape()
		x.biasItems = s[0] * s[1] * ceilDiv(s[2], tileQ) * ceilDiv(s[3], tileK)
		biasFloats = 2 * float64(min(tileQ, s[2])) * float64(min(tileK, s[3]))
	}
	pl.planPortable()
	if x.keyItems = p.KVHeads * pl.keyTiles(tileK); pl.call.Args != nil && !pl.call.Args.DSink.IsZero() {
		x.sinkItems = p.Heads
	}
	rows, keys, dim, vdim := float64(x.rows), float64(x.keys), float64(p.Dim), float64(p.VDim)
	keyFloats := 2*keys*(dim+vdim) + 2*rows*tileK
	pl.tables, pl.work[0] = 2, pool.Phase{
		Items:  x.biasItems + x.keyItems + x.queryItems + x.sinkItems,
		Floats: count(rows*(dim+vdim+2) + min(rows, 1)*vdim + keys*(dim+vdim) + max(keyFloats, 2*rows*dim, biasFloats)),
	}
}

var bwdGenericPace = pace{start: 1500, flop: .154, pair: 59, element: 1.3}

// bwdGenericTimes predicts the time from seven products per pair of a row and a key. Tiles of keys
// compute four of the products, and tiles of query rows compute three. A DBias with shared elements
// needs two more products, because tiles of DBias compute S and dP once more. If there are few
// keys, tiles of keys are the longest items.
func bwdGenericTimes(pl *plan) [3]timedPhase {
	t, c, x := &bwdGenericPace, pl.call, &pl.portable
	pairs, dims := pairsSeen(c), float64(c.Dim+c.VDim)
	rows, keys := rowsAndKeys(c)
	pair, half := t.pair/2+pairTime(c), halfTimes(c.DType, 1)
	keyPair, rowPair, biasPair := 4*dims*t.flop+pair, 3*dims*t.flop+pair, 2*dims*t.flop+pair
	read := pairs * dims * half

	keyTime := float64(x.keyItems)*t.start + pairs*keyPair + keys*dims*(t.element+half) + read/float64(max(1, x.keys))
	rowTime := float64(x.queryItems)*t.start + pairs*rowPair + rows*dims*(t.element+2*half) + read/float64(max(1, x.rows))
	sum := keyTime + rowTime + float64(x.sinkItems)*t.start
	group := float64(c.Heads / c.KVHeads)
	most := max(keyTime/float64(max(1, x.keyItems)), pl.longestPairs(tileK, true)*group*keyPair, pl.longestPairs(tileQ, false)*rowPair)
	if x.biasItems > 0 {
		biasTime := float64(x.biasItems)*t.start + pairs*biasPair
		sum, most = sum+biasTime, max(most, biasTime/float64(x.biasItems))
	}
	return [3]timedPhase{{pl.work[0].Items, sum, most}}
}
