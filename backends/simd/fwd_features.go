package simd

import (
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// portableFeatures is what the portable kernels take, by name: what is new must be
// taught first.
const portableFeatures = flashkit.FeatureShift | flashkit.FeatureSoftcap | flashkit.FeatureALiBi |
	flashkit.FeatureBias | flashkit.FeatureMask | flashkit.FeatureSink | flashkit.FeatureDropout | flashkit.FeatureOrigin | flashkit.FeatureRagged

// hasFeatures reports whether a call has more than a band, and rows of two types, which
// any code here knows.
func hasFeatures(c *flashkit.Call) bool {
	return c.Features()&^(flashkit.FeatureShift|flashkit.FeatureMixed) != 0
}

func fwdFeatureFloats(c *flashkit.Call, f *featurePlan) int {
	r, k, dim, vdim := float64(f.rows), float64(f.keys), float64(c.Dim), float64(c.VDim)
	return count(r*(dim+2*(vdim+1)) + k*(dim+vdim+1))
}

// fwdFeatureTile is a tile of fwd_generic with features, which have three places:
//
//	begin of a row:  m, l, o from nothing, from LSE and O, from the sink
//	scores:          capped, biased, of the keys alone that the mask lets through
//	weights:         dropout, after they have been added to l
func fwdFeatureTile(j *job, ws *arena, item int) {
	p, t := &j.p, j.rowTile(item)
	rows := t.to - t.from
	q, qStep := view(&j.args.Q, t.QBatch, t.h, t.Q0+t.from, rows, ws.take(rows*p.Dim))
	width := p.VDim + 1               // of o and l
	sums := ws.take(rows * 2 * width) // of the run at hand, then of those before
	var m [tileQ]float64
	var met [tileQ]bool // a key
	for i := range rows {
		m[i] = j.beginRow(&t, t.from+i, sums[i*2*width:][:2*width])
	}
	kv, w := newKVTile(j, ws), ws.take(j.features.keys)
	var x scorer
	x.begin(j)
	x.setHead(&t.Seq, t.b, t.h)

	first, last := t.keysSeen()
	for k0 := first; k0 < last; k0 += tileK {
		k1 := min(k0+tileK, last)
		kv.load(j, &t.Seq, t.b, t.g, k0, k1-k0)
		for i := range rows {
			row := sums[i*2*width:][:2*width]
			if (k0-first)%portableRun == 0 {
				addRun(row[width:], row[:width])
			}
			if j.canceled() {
				return
			}
			lo, hi := t.Keys(t.from + i)
			x.setRow(t.from + i)
			keys := x.seen(k0, max(lo, k0), min(hi, k1))
			if len(keys) == 0 {
				continue
			}
			met[i] = true
			w := w[:len(keys)]
			dots(w, q[i*qStep:][:p.Dim], kv.k, kv.kStep, keys)
			var sum float32
			m[i], sum = accumulateScores(w, x.scores(w, k0, keys), m[i], row)
			row[p.VDim] += sum
			if p.Score.Dropout != 0 {
				for c, z := range x.dropout(k0, keys) {
					w[c] *= z
				}
			}
			mixAt(row[:p.VDim], w, kv.v, kv.vStep, keys)
		}
	}
	for i := range rows {
		row := sums[i*2*width:][:2*width]
		addRun(row[width:], row[:width])
		o, l := row[width:2*width-1], row[2*width-1]
		if p.Carry && !p.Score.Sink && !met[i] && l != 0 {
			continue // O and LSE stay
		}
		j.endRow(&t, t.from+i, m[i], l, o)
	}
	j.clearRows(&t)
}

// keysSeen returns the keys that some row of the tile sees.
func (t *seqTile) keysSeen() (first, last int) {
	if t.from == t.to {
		return 0, 0
	}
	first, _ = t.Keys(t.from)
	_, last = t.Keys(t.to - 1)
	return first, last
}

// beginRow sets the sums of row i, o and l of a run and of those before it, and returns
// its maximum: what an earlier part of the keys and the sink have left.
func (j *job) beginRow(t *seqTile, i int, sums []float32) (m float64) {
	clear(sums)
	past, m := sums[len(sums)/2:], math.Inf(-1)
	o, l := past[:len(past)-1], &past[len(past)-1]
	if lse := j.earlierLSE(t.QBatch, t.h, t.Q0+i); !math.IsInf(lse, -1) {
		m, *l = lse, 1
		load(o, &j.args.O, j.args.O.Offset(t.QBatch, t.h, t.Q0+i))
	}
	if j.p.Score.Sink {
		sink := j.sinkOf(t.h)
		if top := max(m, sink); !math.IsInf(top, -1) {
			scale(past, exp(m-top))
			*l += exp(sink - top)
			m = top
		}
	}
	return m
}

// accumulateScores is accumulate of scores in float64, scaled already. It sets w to the weights.
func accumulateScores(w []float32, s []float64, m float64, sums []float32) (top float64, sum float32) {
	top = m
	for _, x := range s {
		if x > top {
			top = x
		}
	}
	if top > m {
		scale(sums, exp(m-top))
	}
	shift := top
	if math.IsInf(top, -1) {
		shift = 0 // every score so far is -Inf or NaN: exp must give 0 or NaN, not exp(-Inf + Inf)
	}
	w = w[:len(s)]
	l := 0.0
	for c, x := range s {
		w[c] = exp(x - shift)
		l += float64(w[c])
	}
	return top, float32(l)
}

// endRow divides once and writes row i.
func (j *job) endRow(t *seqTile, i int, m float64, l float32, o []float32) {
	f, lse := j.args, math.Inf(-1)
	if l == 0 { // no key, or none with a score above -Inf
		clear(o)
	} else {
		scale(o, 1/l)
		lse = m + math.Log(float64(l))
	}
	store(&f.O, f.O.Offset(t.QBatch, t.h, t.Q0+i), o)
	j.storeLSE(t.QBatch, t.h, t.Q0+i, float32(lse))
}

// clearRows writes the rows of O and LSE that the sequence does not have.
func (j *job) clearRows(t *seqTile) {
	clearRows(&j.args.O, t.QBatch, t.h, t.to, t.end)
	for i := t.to; i < t.end; i++ {
		j.storeLSE(t.QBatch, t.h, i, float32(math.Inf(-1)))
	}
}

// clearRows writes zeros to rows [from, to) of a head, which are padding: at once where they
// lie together, and not by way of the caches.
func clearRows(t *flashkit.Tensor, b, h, from, to int) {
	n, wide := to-from, t.Shape()[3]
	if n > 1 && rowStep(t) == wide {
		n, wide = 1, n*wide
	}
	for i := range n {
		clearPadding(bytesOf(t, t.Offset(b, h, from+i), wide))
	}
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

// clearElements writes n zeros from the given element on.
func clearElements(t *flashkit.Tensor, at, n int) { clear(bytesOf(t, at, n)) }

// bytesOf returns the memory of n elements from the given one on. Where there are none they
// may begin anywhere: there is no memory behind them.
func bytesOf(t *flashkit.Tensor, at, n int) []byte {
	switch {
	case n <= 0:
		return nil
	case t.DType() == flashkit.Float32:
		x := t.Float32s()[at:][:n]
		return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*n)
	default:
		x := t.Uint16s()[at:][:n]
		return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 2*n)
	}
}
