//go:build amd64 && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestGradientsT(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for range trials(500) {
			keys, scale := 1+r.IntN(20), float32(r.Float64())
			s, dp, nan := newFenced(keys*n), newFenced(keys*n), float32(math.NaN())
			copy(s.x, normals(r, keys*n))
			copy(dp.x, normals(r, keys*n))
			masks, lse, delta := make([]uint32, keys), normals(r, n), normals(r, n)
			for at := range s.x {
				if r.IntN(2) == 0 {
					masks[at/n] |= 1 << (at % n)
				} else if r.IntN(2) == 0 {
					s.x[at], dp.x[at] = nan, nan
				}
			}
			scores, grads := append([]float32(nil), s.x...), append([]float32(nil), dp.x...)
			isa.gradientsT(&s.x[0], &dp.x[0], &masks[0], keys, &lse[0], &delta[0], scale)
			for at, score := range scores {
				i, j, w, g := at/n, at%n, 0., 0.
				if masks[i]>>j&1 != 0 {
					w = math.Exp(float64(scale)*float64(score) - float64(lse[j]))
					g = float64(scale) * w * (float64(grads[at]) - float64(delta[j]))
				}
				requireThat(t, near(w, s.x[at], w*2e-6), "weight: %g, want %g", s.x[at], w)
				requireThat(t, near(g, dp.x[at], math.Abs(g)*2e-6+w*1e-6), "gradient: %g, want %g", dp.x[at], g)
			}
			s.requireFence(t, n, n)
			dp.requireFence(t, n, n)
		}
	})
}
