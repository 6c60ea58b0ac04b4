//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// A row's result includes its sink and, with Carry, the result of earlier keys, which O and LSE
// hold when the call begins. The sink and the earlier result are merged after all keys of the call,
// once m and l are known. The merge is in float64, relative to the largest of m, the sink and the
// LSE of the earlier keys. The last step also multiplies O by dropout's factor of the kept weights.

// ends reports whether the last step of a row may do more than divide O by l.
func (pl *plan) ends() bool {
	s := &pl.p.Score
	return s.Sink || s.Bias || s.Dropout != 0 || pl.p.Carry
}

// sinkReach is the largest difference between sink and row maximum at which the sink's weight is
// added to l. With a larger sink, the sum of the row maximum and ln(l), which is LSE, would lose
// digits. Rows with a larger sink are merged in float64.
const sinkReach = 4

// endTile sets x.top to the LSE of the tile's rows, and x.factors to the factors by which O of the
// rows must be multiplied. With Carry, it sets x.scratchMax to the factors of O of the earlier
// keys.
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

// earlier returns the LSE over the earlier keys of row i of the tile, or -Inf if there are none.
func (j *job) earlier(t *laneTile, i int) float64 {
	return j.earlierLSE(t.seq.QBatch, t.seq.h, t.seq.Q0+t.from+i)
}

// endLane merges row i of the tile with the sink and the earlier keys in float64. If l already
// includes the sink, or if m, sink and earlier LSE are all -Inf, endLane only sets x.scratchMax[i]
// to 0.
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

// relative returns x - top, or 0 if x and top are the same infinity.
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

// storeCarried adds O of the earlier keys to the tile's rows in x.rows, and stores the sums in the
// tensor O. padded is the distance between rows of x.rows, in elements. If neither a key of the
// call nor the sink has a weight, storeCarried skips the row, and O keeps its bits.
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
