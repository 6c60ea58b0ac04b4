//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
)

// dSink of a head is minus the sum over rows of delta times the sink's weight. The sum over a tile
// of query rows is computed when the tile is prepared. The tiles' sums are then added in order, in
// float64, so the result does not depend on the workers.

// sumDSink sets x.sink to the tile's share of dSink, computed from LSE and delta.
func (j *job) sumDSink(x *tileStats, y *seqTile) {
	if j.args.DSink.IsZero() {
		return
	}
	sink, sum, lse := j.sinkOf(y.h), 0.0, &j.args.LSE
	for i := range y.to - y.from {
		if !math.IsInf(float64(lse.Float32s()[lse.Offset(y.QBatch, y.h, y.Q0+y.from+i)]), -1) {
			sum -= float64(scalar.Exp(sink-float64(x.lse[i]))) * float64(x.delta[i])
		}
	}
	bits := math.Float64bits(sum)
	x.sink[0], x.sink[1] = math.Float32frombits(uint32(bits)), math.Float32frombits(uint32(bits>>32))
}

func (isa *laneRoutines) storeDSink(j *job) {
	t := &j.args.DSink
	if t.IsZero() {
		return
	}
	batch := j.p.Batch
	if j.rowTiles(j.rows) == 0 {
		batch = 0 // without rows, the batch is unbounded: do not loop over it
	}
	for h := range j.p.Heads {
		sum := 0.0
		for b := 0; b < batch && !j.Canceled(); b++ {
			for tile := range ceilDiv(j.call.Seq(b).N, j.rows) {
				x := isa.stats(j, b, h, tile)
				sum += math.Float64frombits(uint64(math.Float32bits(x.sink[0])) | uint64(math.Float32bits(x.sink[1]))<<32)
			}
		}
		t.Float32s()[t.Offset(0, h, 0)] = float32(sum)
	}
}
