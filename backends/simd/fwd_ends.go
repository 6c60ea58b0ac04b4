//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// A row's result includes its sink and, with Carry, the result of earlier keys. Both are merged
// after all keys, once m and l are known. The merge is in float64, relative to the largest of m,
// the sink and the LSE of the earlier keys. It also applies the factor of dropout.

// ends reports whether rows may end with more than a division by l.
func (pl *plan) ends() bool {
	s := &pl.p.Score
	return s.Sink || s.Bias || s.Dropout != 0 || pl.p.Carry
}

// sinkReach is the largest distance of a sink above the row maximum at which the sink's weight may
// be added to l. LSE is the maximum plus ln(l). If a more distant sink dominated both, LSE would
// lose digits.
const sinkReach = 4

// endTile sets x.top to the LSE of the tile's rows and x.factors to the factors of their O. With
// Carry, it sets x.scratchMax to the factors of the earlier keys' O.
func (isa *laneRoutines) endTile(j *job, t *laneTile, x *laneScratch) {
	sink, exact := j.sinkOf(t.seq.h), j.p.Carry
	if j.p.Score.Sink && !exact {
		for i, m := range t.m[:t.n] {
			if d := sink - j.unit*float64(m); d <= sinkReach {
				t.l[i] += scalar.Exp(d)
			} else {
				exact = true
			}
		}
	}
	isa.finalizeLSE(&x.top[0], &x.factors[0], &t.m[0], &t.l[0], float32(j.unit))
	if exact {
		for i := range t.n {
			j.endLane(t, x, i, sink)
		}
	}
	for i, l := range t.l[:t.n] {
		if l == 0 { // no key has a weight, and 0 times a value may be NaN
			isa.clearLane(t.o, i)
		}
	}
	if p := j.p.Score.Dropout; p != 0 {
		keep := philox.Keep(p)
		for i := range x.factors {
			x.factors[i] *= keep
		}
	}
}

// earlier returns the LSE of the earlier keys of row i of the tile, or -Inf.
func (j *job) earlier(t *laneTile, i int) float64 {
	return j.earlierLSE(t.seq.QBatch, t.seq.h, t.seq.Q0+t.from+i)
}

// endLane merges row i with the sink and the earlier keys in float64. If l already includes the
// sink, or if no weight exists, endLane only sets x.scratchMax[i] to 0.
func (j *job) endLane(t *laneTile, x *laneScratch, i int, sink float64) {
	m, before := j.unit*float64(t.m[i]), j.earlier(t, i)
	top := max(m, before, sink)
	if math.IsInf(top, -1) || !j.p.Carry && sink-m <= sinkReach {
		x.scratchMax[i] = 0
		return
	}
	weight, carried := scalar.Exp(relative(m, top)), scalar.Exp(relative(before, top))
	l := float64(t.l[i])*float64(weight) + float64(carried) + float64(scalar.Exp(relative(sink, top)))
	x.top[i] = float32(top + math.Log(l))
	x.factors[i], x.scratchMax[i] = float32(float64(weight)/l), float32(float64(carried)/l)
}

// relative returns x - top, or 0 if both are the same infinity.
func relative(x, top float64) float64 {
	if x == top {
		return 0
	}
	return x - top
}

func (isa *laneRoutines) clearLane(o []float32, i int) {
	for ; i < len(o); i += isa.lanes {
		o[i] = 0
	}
}

// storeCarried adds O of the earlier keys to the tile's rows in x.rows, which are padded elements
// apart, and writes the sums. It skips a row if neither the tile's keys nor the sink have a weight,
// so that the tensor keeps its bits.
func (isa *laneRoutines) storeCarried(j *job, t *laneTile, x *laneScratch, padded int) {
	o := &j.args.O
	for i := range t.n {
		at, row := o.Offset(t.seq.QBatch, t.seq.h, t.seq.Q0+t.from+i), x.rows[i*padded:][:padded]
		if before := j.earlier(t, i); !math.IsInf(before, -1) {
			if t.l[i] == 0 && x.scratchMax[i] == 1 {
				continue
			}
			isa.load(x.earlier[:j.p.VDim], o, at)
			isa.add(isa.addProduct, isa.addProductMasked, row, 0, x.scratchMax[i:], 0, x.earlier, 0, 1, 1, j.p.VDim)
		}
		isa.store(o, at, row[:j.p.VDim])
	}
}
