package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// bwdFeatureItem is an item of bwd_generic with features. Beside tiles of keys and of query rows,
// items are tiles of a DBias that repeats, each of which walks all pairs that it is
// summed over, and heads of DSink. So no sum depends on who adds it.
func bwdFeatureItem(j *job, ws *arena, item int) {
	f := &j.features
	switch {
	case item < f.biasItems:
		j.biasTile(ws, item)
	case item < f.biasItems+f.keyItems:
		j.keyFeatureGradients(ws, j.keyTile(item-f.biasItems))
	case item < f.biasItems+f.keyItems+f.queryItems:
		j.queryFeatureGradients(ws, j.rowTile(item-f.biasItems-f.keyItems))
	default:
		j.sinkGradient(ws, item-f.biasItems-f.keyItems-f.queryItems)
	}
}

func (f *featurePlan) backwardItems() int {
	return f.biasItems + f.keyItems + f.queryItems + f.sinkItems
}

func bwdFeatureFloats(c *flashkit.Call, f *featurePlan) int {
	rows, keys, dim, vdim := float64(f.rows), float64(f.keys), float64(c.Dim), float64(c.VDim)
	keyItem := 2*keys*(dim+vdim) + 2*rows*tileK
	biasItem := 0.0
	if f.biasItems > 0 {
		s := c.Args.DBias.Shape()
		biasItem = 2 * float64(min(tileQ, s[2])) * float64(min(tileK, s[3]))
	}
	return count(rows*(dim+vdim+2) + min(rows, 1)*vdim + keys*(dim+vdim) + max(keyItem, 2*rows*dim, biasItem))
}

// A gradPairs computes the gradients of pairs of a tile of query rows and one of keys.
type gradPairs struct {
	rows gradTile
	keys kvTile
	x    scorer
	prob [tileK]float32 // P, without what is dropped
	ds   [tileK]float32 // of the score before bias and slope were added
}

func (x *gradPairs) begin(j *job, ws *arena) {
	x.rows, x.keys = j.newRows(ws), newKVTile(j, ws)
	x.x.begin(j)
}

// newRows is newGradTile for rows that there are, whatever the problem allows.
func (j *job) newRows(ws *arena) gradTile {
	p := j.p
	p.QLen = j.features.rows
	return newGradTile(&p, ws)
}

// setRows loads the query rows [from, to) of head h.
func (x *gradPairs) setRows(j *job, t *flashkit.Seq, b, h, from, to int) {
	x.rows.load(j, t.QBatch, h, t.Q0+from, to-from)
	x.x.setHead(t, b, h)
}

// pairs computes prob and ds of row i, which is row r of those that are loaded, and of
// those keys from lo up to but not including hi that it sees and that have a weight. It
// returns them, by their numbers from k0 on.
func (x *gradPairs) pairs(i, r, k0, lo, hi int) (keys []int, prob, ds []float32) {
	t := &x.rows
	lse, delta := float64(t.lse[r]), t.delta[r]
	if lo >= hi || math.IsInf(lse, -1) {
		return nil, nil, nil
	}
	x.x.setRow(i)
	keys = x.x.seen(k0, lo, hi)
	prob, ds = x.prob[:len(keys)], x.ds[:len(keys)]
	dots(prob, t.q[r*t.qStep:][:t.dim], x.keys.k, x.keys.kStep, keys)
	dotsInHalves(ds, t.do[r*t.doStep:][:t.vdim], x.keys.v, x.keys.vStep, keys)
	s, z := x.x.scores(prob, k0, keys), x.x.dropout(k0, keys)
	for c := range s {
		w := exp(s[c] - lse)
		prob[c], ds[c] = w*z[c], w*(z[c]*ds[c]-delta)
	}
	return keys, prob, ds
}

// uncapped turns gradients of capped scores into those of scores.
func (x *gradPairs) uncapped(ds []float32) []float32 {
	if x.x.score.Softcap != 0 {
		for c := range ds {
			ds[c] *= x.x.uncap[c]
		}
	}
	return ds
}

// keyFeatureGradients writes dK and dV of one tile of keys.
func (j *job) keyFeatureGradients(ws *arena, t seqTile) {
	p, f, n := &j.p, j.args, t.to-t.from
	var x gradPairs
	x.begin(j, ws)
	run, past := twoSums(ws, n*(p.Dim+p.VDim))
	dk, dv := run[:n*p.Dim], run[n*p.Dim:]
	m := pairMatrix{prob: ws.take(j.features.rows * tileK), ds: ws.take(j.features.rows * tileK)}
	first, last := t.rowsSeen()
	if first < last {
		x.keys.load(j, &t.Seq, t.b, t.g, t.from, n)
	}
	group, met := p.Heads/p.KVHeads, 0
	for h := t.g * group; first < last && h < (t.g+1)*group; h++ {
		for q0 := first; q0 < last; q0 += tileQ {
			if met += tileQ; met%portableRun == 0 {
				addRun(past, run)
			}
			q1 := min(q0+tileQ, last)
			x.setRows(j, &t.Seq, t.b, h, q0, q1)
			for i := q0; i < q1; i++ {
				if j.canceled() {
					return
				}
				lo, hi := t.Keys(i)
				keys, prob, ds := x.pairs(i, i-q0, t.from, max(lo, t.from), min(hi, t.to))
				m.setRow(i-q0, keys, prob, x.uncapped(ds))
			}
			for c := range n {
				if j.canceled() {
					return
				}
				rows, prob, ds := m.column(c, q1-q0)
				mixAt(dv[c*p.VDim:][:p.VDim], prob, x.rows.do, x.rows.doStep, rows)
				mixAt(dk[c*p.Dim:][:p.Dim], ds, x.rows.q, x.rows.qStep, rows)
			}
		}
	}
	addRun(run, past)
	scale(dk, float32(j.scale))
	for c := range n {
		store(&f.DK, f.DK.Offset(t.KVBatch, t.g, t.K0+t.from+c), dk[c*p.Dim:][:p.Dim])
		store(&f.DV, f.DV.Offset(t.KVBatch, t.g, t.K0+t.from+c), dv[c*p.VDim:][:p.VDim])
	}
	j.clearGradKeys(&t)
}

// clearGradRows writes zeros to the rows of dQ that the sequence does not have.
func (j *job) clearGradRows(t *seqTile) {
	if !j.call.Traits.PackedQ {
		clearRows(&j.args.DQ, t.QBatch, t.h, t.to, t.end)
	}
}

// clearGradKeys writes zeros to the rows of dK and dV that the sequence does not have.
func (j *job) clearGradKeys(t *seqTile) {
	clearRows(&j.args.DK, t.KVBatch, t.g, t.to, t.end)
	clearRows(&j.args.DV, t.KVBatch, t.g, t.to, t.end)
}

// rowsSeen returns the query rows that see some key of the tile.
func (t *seqTile) rowsSeen() (first, last int) {
	if t.from == t.to {
		return 0, 0
	}
	first, _ = t.Queries(t.from)
	_, last = t.Queries(t.to - 1)
	return first, last
}

// A pairMatrix holds P and dS of a tile, row by row, for sums over rows.
type pairMatrix struct {
	prob, ds []float32     // [rows][tileK]
	seen     [tileQ]uint64 // a bit for each key

	rows        [tileQ]int // of a column
	colP, colDS [tileQ]float32
}

func (m *pairMatrix) setRow(i int, keys []int, prob, ds []float32) {
	p, d, seen := m.prob[i*tileK:][:tileK], m.ds[i*tileK:][:tileK], uint64(0)
	for c, key := range keys {
		p[key], d[key] = prob[c], ds[c]
		seen |= 1 << key
	}
	m.seen[i] = seen
}

// column returns those of the first n rows that see key c, and what they hold for it.
func (m *pairMatrix) column(c, n int) (rows []int, prob, ds []float32) {
	k := 0
	for i, seen := range m.seen[:n] {
		if seen>>c&1 != 0 {
			m.rows[k], m.colP[k], m.colDS[k] = i, m.prob[i*tileK+c], m.ds[i*tileK+c]
			k++
		}
	}
	return m.rows[:k], m.colP[:k], m.colDS[:k]
}

// queryFeatureGradients writes dQ of one tile of query rows, and those rows of DBias
// that are theirs alone.
func (j *job) queryFeatureGradients(ws *arena, t seqTile) {
	p, f, rows := &j.p, j.args, t.to-t.from
	var x gradPairs
	x.begin(j, ws)
	dq, past := twoSums(ws, rows*p.Dim)
	x.setRows(j, &t.Seq, t.b, t.h, t.from, t.to)
	for i := t.from; j.features.ownBias && i < t.end; i++ { // some of them are added to at once
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
			if j.canceled() {
				return
			}
			i := t.from + r
			lo, hi := t.Keys(i)
			keys, _, ds := x.pairs(i, r, k0, max(lo, k0), min(hi, k1))
			if j.features.ownBias {
				scatter(&f.DBias, f.DBias.Offset(t.b, t.h, i)+k0, keys, ds)
			}
			mixAt(dq[r*p.Dim:][:p.Dim], x.uncapped(ds), x.keys.k, x.keys.kStep, keys)
		}
	}
	addRun(dq, past)
	scale(dq, float32(j.scale))
	for r := range rows {
		store(&f.DQ, f.DQ.Offset(t.QBatch, t.h, t.Q0+t.from+r), dq[r*p.Dim:][:p.Dim])
	}
	j.clearGradRows(&t)
}
