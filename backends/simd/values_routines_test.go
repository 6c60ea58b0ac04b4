//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"
)

// addValues must not add values that a mask hides, in any column of V, even if these are NaN or
// infinite.
func TestAddValuesMasked(t *testing.T) {
	nonFinite := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32}
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for range trials(1000) {
			keys, vdim := 1+r.IntN(40), 1+r.IntN(40)
			step := vdim + r.IntN(2)*r.IntN(9)
			v, p, masks := make([]float32, (keys-1)*step+vdim), make([]float32, keys*n), make([]uint32, keys)
			for i := range v {
				v[i] = float32(r.NormFloat64())
			}
			for j := range masks {
				masks[j] = r.Uint32()
				for i := range n {
					if masks[j]>>i&1 != 0 {
						p[j*n+i] = r.Float32()
					}
				}
			}
			for range r.IntN(3) { // often none
				v[r.IntN(len(v))] = nonFinite[r.IntN(len(nonFinite))]
			}
			o := newFenced(vdim * n)
			isa.addValues(&o.x[0], &v[0], step, &p[0], keys, vdim, nil, &masks[0])
			for c := range vdim {
				for i := range n {
					want, size := 0.0, 0.0
					for j, mask := range masks {
						if mask>>i&1 != 0 {
							x := float64(v[j*step+c]) * float64(p[j*n+i])
							want, size = want+x, size+math.Abs(x)
						}
					}
					got := o.x[c*n+i]
					requireThat(t, near(want, got, size*float64(keys)*0x1p-24), "column %d of %d, lane %d, %d keys: %g, want %g", c, vdim, i, keys, got, want)
				}
			}
			o.requireFence(t, n, n)
		}
	})
}
