//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// The sink of a head and, with Carry, the result of earlier keys are taken in at the end of
// a row, when its maximum m and its sum l are known: relative to the largest of m, the sink
// and the earlier LSE, in float64. So is what dropout multiplies weights by.

// ends reports whether rows end with more than a division by l.
func (pl *plan) ends() bool {
	s := &pl.p.Score
	return s.Sink || s.Bias || s.Dropout != 0 || pl.p.Carry
}

// sinkReach is how far above the maximum a sink may be to be added to l as it is: LSE is the
// maximum plus the logarithm of l, and small beside both where the sink is far above.
const sinkReach = 4

// endTile sets x.top to the LSE of the rows of the tile, x.factors to what their O is
// multiplied by and, with Carry, x.scratchMax to what O of the earlier keys is.
func (isa *laneISA) endTile(j *job, t *laneTile, x *laneScratch) {
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
		if l == 0 { // no key has a weight, and 0 times what V holds may be NaN
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

// endLane is endTile of row i, unless the sink has been added to l.
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

// relative returns x - top, and 0 where both are the same infinity.
func relative(x, top float64) float64 {
	if x == top {
		return 0
	}
	return x - top
}

func (isa *laneISA) clearLane(o []float32, i int) {
	for ; i < len(o); i += isa.lanes {
		o[i] = 0
	}
}

// storeCarried writes n rows that have met keys, padded elements apart, and adds O of the
// earlier keys first. A row that has met none stays as it is, to the bit.
func (isa *laneISA) storeCarried(j *job, t *laneTile, x *laneScratch, padded int) {
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
