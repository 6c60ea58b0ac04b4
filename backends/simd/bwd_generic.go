package simd

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// bwd_generic recomputes, for each query row i and key j that it sees,
//
//	P  = exp(scale * Q[i]·K[j] - LSE[i])
//	dS = P * (dO[i]·V[j] - delta[i]),  delta[i] = dO[i]·O[i] - dLSE[i]
//
// and sums
//
//	dV[j] += P * dO[i];  dK[j] += scale * dS * Q[i];  dQ[i] += scale * dS * K[j]
//
// in runs of portableRun rows or keys.
// (Dao et al. 2022, appendix B.2.) An item is either one tile of keys, which
// walks the query rows that see it and owns its dK and dV, or one tile of query
// rows, which walks its keys and owns its dQ. Nothing is shared, so nothing is
// added atomically and nothing waits; the price is that P and dP are computed
// twice, seven products instead of five. Calls with features have items of their own.
func (b *Backend) bwdGeneric(ctx context.Context, c *flashkit.Call) error {
	j := b.newJob(c)
	if hasFeatures(c) {
		j.cut()
		return b.do(ctx, j, bwdFeatureItem, j.features.backwardItems(), bwdFeatureFloats(c, &j.features))
	}
	keyItems, queryItems := bwdGenericItems(c.Problem)
	return b.do(ctx, j, bwdGenericTile, keyItems+queryItems, bwdGenericFloats(c.Problem))
}

func bwdGenericFloats(p flashkit.Problem) int {
	q, k := tileSize(&p)
	rows, keys, dim, vdim := float64(q), float64(k), float64(p.Dim), float64(p.VDim)
	queryTile := rows*(dim+vdim+2) + min(rows, 1)*vdim
	return count(queryTile + max(3*keys*(dim+vdim)+2*rows*tileK, 2*rows*dim+keys*(dim+vdim)+2*tileK))
}

func bwdGenericNeeds(c *flashkit.Call) flashkit.Memory {
	if hasFeatures(c) {
		f := planFeatures(c)
		return flashkit.Memory{Host: memory(c, phase{f.backwardItems(), bwdFeatureFloats(c, &f)}) + f.tables(c)}
	}
	keys, queries := bwdGenericItems(c.Problem)
	return flashkit.Memory{Host: memory(c, phase{keys + queries, bwdGenericFloats(c.Problem)})}
}

func bwdGenericItems(p flashkit.Problem) (keys, queries int) {
	return p.Batch * p.KVHeads * ceilDiv(p.KVLen, tileK), p.Batch * p.Heads * ceilDiv(p.QLen, tileQ)
}

func bwdGenericCost(c *flashkit.Call) time.Duration {
	if hasFeatures(c) {
		return cost(c, bwdFeatureTimes(c))
	}
	return cost(c, bwdGenericTimes(c.Problem))
}

// bwdGenericTimes has seven products for a pair: four in a tile of keys, three in one
// of rows. Where there are few keys, theirs are the longest items.
func bwdGenericTimes(p flashkit.Problem) timedPhase {
	c, met, dims := &bwdGenericPace, pairs(&p, 1, 1), float64(p.Dim+p.VDim)
	keys, queries := bwdGenericItems(p)
	half := 0.0
	if p.DType == flashkit.Float16 {
		half = halfTime
	}
	keyTime := float64(keys)*c.start + met*(4*dims*c.flop+c.pair/2) +
		keyElements(&p, 1)*(c.element+half) + readRows(&p, 1, tileK)*dims*half
	queryTime := float64(queries)*c.start + met*(3*dims*c.flop+c.pair/2) +
		rowElements(&p, 1)*(c.element+2*half) + readKeys(&p, tileQ, 1)*dims*half
	return timedPhase{keys + queries, keyTime + queryTime, keyTime / float64(max(1, keys))}
}

var bwdGenericPace = pace{start: 1500, flop: .154, pair: 59, element: 1.3}

func bwdGenericTile(j *job, ws *arena, item int) {
	if keys, _ := bwdGenericItems(j.p); item < keys {
		j.keyGradients(ws, item)
	} else {
		j.queryGradients(ws, j.queryTile(item-keys))
	}
}

// keyGradients writes dK and dV of one tile of keys.
func (j *job) keyGradients(ws *arena, item int) {
	p, f := &j.p, j.args
	heads := p.Batch * p.KVHeads
	k0 := item / heads * tileK // the first keys of a causal mask are seen by the most rows
	k1 := min(k0+tileK, p.KVLen)
	b, g := item%heads/p.KVHeads, item%p.KVHeads

	k, kStep := view(&f.K, b, g, k0, k1-k0, ws.take((k1-k0)*p.Dim))
	v, vStep := view(&f.V, b, g, k0, k1-k0, ws.take((k1-k0)*p.VDim))
	run, past := twoSums(ws, (k1-k0)*(p.Dim+p.VDim))
	dk, dv := run[:(k1-k0)*p.Dim], run[(k1-k0)*p.Dim:]
	qt := newGradTile(p, ws)
	rows, _ := tileSize(p)
	prob, ds := ws.take(rows*tileK), ws.take(rows*tileK)

	first, _ := p.Queries(k0)
	_, last := p.Queries(k1 - 1)
	group, met := p.Heads/p.KVHeads, 0
	for h := g * group; h < (g+1)*group; h++ {
		for q0 := first; q0 < last; q0 += tileQ {
			if met += tileQ; met%portableRun == 0 {
				addRun(past, run)
			}
			q1 := min(q0+tileQ, last)
			qt.load(j, b, h, q0, q1-q0)
			for i := range q1 - q0 {
				lo, hi := p.Keys(q0 + i)
				lo, hi = max(lo, k0)-k0, min(hi, k1)-k0
				if lo < hi {
					if j.canceled() {
						return
					}
					at := i * tileK
					qt.scoreGradient(i, prob[at+lo:at+hi], ds[at+lo:at+hi], k[lo*kStep:], kStep, v[lo*vStep:], vStep)
				}
			}
			for c := range k1 - k0 {
				lo, hi := p.Queries(k0 + c)
				lo, hi = max(lo, q0)-q0, min(hi, q1)-q0
				if lo < hi {
					if j.canceled() {
						return
					}
					at := lo*tileK + c
					axpy(dv[c*p.VDim:][:p.VDim], prob[at:], tileK, hi-lo, qt.do[lo*qt.doStep:], qt.doStep)
					axpy(dk[c*p.Dim:][:p.Dim], ds[at:], tileK, hi-lo, qt.q[lo*qt.qStep:], qt.qStep)
				}
			}
		}
	}
	addRun(run, past)
	scale(dk, float32(j.scale))
	for c := range k1 - k0 {
		store(&f.DK, f.DK.Offset(b, g, k0+c), dk[c*p.Dim:][:p.Dim])
		store(&f.DV, f.DV.Offset(b, g, k0+c), dv[c*p.VDim:][:p.VDim])
	}
}

// queryGradients writes dQ of one tile of query rows.
func (j *job) queryGradients(ws *arena, t queryTile) {
	p, f := &j.p, j.args
	rows := t.to - t.from
	qt := newGradTile(p, ws)
	qt.load(j, t.b, t.h, t.from, rows)
	dq, past := twoSums(ws, rows*p.Dim)
	_, keys := tileSize(p)
	kbuf, vbuf := ws.take(keys*p.Dim), ws.take(keys*p.VDim)
	prob, ds := ws.take(tileK), ws.take(tileK)

	first, _ := p.Keys(t.from)
	_, last := p.Keys(t.to - 1)
	for k0 := first; k0 < last; k0 += tileK {
		if (k0-first)%portableRun == 0 {
			addRun(past, dq)
		}
		k1 := min(k0+tileK, last)
		k, kStep := view(&f.K, t.b, t.kvHead, k0, k1-k0, kbuf)
		v, vStep := view(&f.V, t.b, t.kvHead, k0, k1-k0, vbuf)
		for i := range rows {
			lo, hi := p.Keys(t.from + i)
			lo, hi = max(lo, k0)-k0, min(hi, k1)-k0
			if lo < hi {
				if j.canceled() {
					return
				}
				row := ds[:hi-lo]
				qt.scoreGradient(i, prob[:hi-lo], row, k[lo*kStep:], kStep, v[lo*vStep:], vStep)
				axpy(dq[i*p.Dim:][:p.Dim], row, 1, hi-lo, k[lo*kStep:], kStep)
			}
		}
	}
	addRun(dq, past)
	scale(dq, float32(j.scale))
	for i := range rows {
		store(&f.DQ, f.DQ.Offset(t.b, t.h, t.from+i), dq[i*p.Dim:][:p.Dim])
	}
}

// A gradTile is what the backward pass needs of a tile of query rows.
type gradTile struct {
	dim, vdim int
	scale     float64
	q, do     []float32
	qStep     int
	doStep    int
	lse       []float32
	delta     []float32 // dO·O - dLSE, summed as dO·V is: where one key has all the weight they must cancel

	qBuf, doBuf, oBuf []float32
}

func newGradTile(p *flashkit.Problem, ws *arena) gradTile {
	rows, _ := tileSize(p)
	return gradTile{
		dim: p.Dim, vdim: p.VDim, scale: p.SoftmaxScale(),
		lse: ws.take(rows), delta: ws.take(rows),
		qBuf: ws.take(rows * p.Dim), doBuf: ws.take(rows * p.VDim), oBuf: ws.take(min(rows, 1) * p.VDim), // nothing backs the width of rows that there are none of
	}
}

// load fills t with n rows of query head h, from row r on.
func (t *gradTile) load(j *job, b, h, r, n int) {
	f := j.args
	t.q, t.qStep = view(&f.Q, b, h, r, n, t.qBuf)
	t.do, t.doStep = view(&f.DO, b, h, r, n, t.doBuf)
	for i := range n {
		t.lse[i] = f.LSE.Float32s()[f.LSE.Offset(b, h, r+i)]
		load(t.oBuf, &f.O, f.O.Offset(b, h, r+i))
		t.delta[i] = dotInHalves(t.do[i*t.doStep:][:t.vdim], t.oBuf)
		if !f.DLSE.IsZero() {
			t.delta[i] -= f.DLSE.Float32s()[f.DLSE.Offset(b, h, r+i)]
		}
	}
}

// scoreGradient sets prob and ds to P and dS of row i and the keys that begin
// at k and v.
func (t *gradTile) scoreGradient(i int, prob, ds, k []float32, kStep int, v []float32, vStep int) {
	lse := float64(t.lse[i])
	if math.IsInf(lse, -1) { // every score is -Inf: no weight anywhere
		clear(prob)
		clear(ds)
		return
	}
	dots(prob, t.q[i*t.qStep:][:t.dim], k, kStep, everyKey[:len(prob)])
	dotsInHalves(ds, t.do[i*t.doStep:][:t.vdim], v, vStep, everyKey[:len(ds)])
	for c, s := range prob {
		prob[c] = exp(float64(float64(s)*t.scale) - lse) // rounded by itself, as the scores of calls with features are
		ds[c] = prob[c] * (ds[c] - t.delta[i])
	}
}
