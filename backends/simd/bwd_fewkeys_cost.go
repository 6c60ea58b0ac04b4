//go:build amd64 && !purego

package simd

import "github.com/flashkit-go/flashkit"

// fewKeysTimes predicts the time of a backward kernel for few keys.
func (isa *laneRoutines) fewKeysTimes(pl *plan) [3]timedPhase {
	f := ofSequences(pl.call, isa.fewKeysTime)
	f.items = pl.work[0].Items
	return [3]timedPhase{f, {items: pl.work[1].Items}}
}

func (isa *laneRoutines) fewKeysTime(p flashkit.Problem) timedPhase {
	const products = 5
	c, heads, seen := isa.adapted(&isa.fewPace), float64(p.Batch*p.Heads), seenRows(&p)
	tiles := heads * float64(ceilDiv(seen, isa.lanes))
	items, dims := float64(p.Batch*p.KVHeads*isa.rowChunks(&p, p.QLen)), float64(p.Dim+p.VDim)
	elements := tiles * float64(isa.lanes) * dims
	t := items*(c.start+float64(p.KVLen)*dims*c.pack) + tiles*c.tile + elements*c.element + converted(&p, elements)*c.widen
	t += pairs(&p, isa.lanes, 1) * (products*paddedDims(&p, 16)*c.flop + c.pair)
	t += heads * float64((p.QLen-seen)*p.Dim*p.DType.Size()) * clearByte
	return timedPhase{nanoseconds: t, longest: t / max(1, items)}
}
