//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// LSE and the divisors of O differ from float64 results by at most two units in the last place.
func TestTotals(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, rng *rand.Rand) {
		n := isa.lanes
		lse, by, m, l := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		for range trials(20000) {
			for i := range n {
				l[i] = float32(math.Exp(20 * rng.Float64() * rng.Float64()))
				m[i] = float32(rng.NormFloat64() * 10 * rng.Float64())
				lse[i], by[i] = -77, -77
			}
			m[0], l[0] = float32(math.Inf(-1)), 0
			m[1], l[1] = 3, float32(math.NaN())
			l[2], l[3] = 1, math.Nextafter32(1, 2)
			isa.finalizeLSE(&lse[0], &by[0], &m[0], &l[0], 0.125)
			require.True(t, math.IsInf(float64(lse[0]), -1) && by[0] == 0, "no key: %g, %g", lse[0], by[0])
			require.True(t, lse[1] != lse[1] && by[1] != by[1], "NaN: %g, %g", lse[1], by[1])
			for i := 2; i < n; i++ {
				require.Equal(t, 1/l[i], by[i], "1/%g", l[i])
				log, scaled := math.Log(float64(l[i])), 0.125*float64(m[i])
				want := scaled + log
				assert.InDelta(t, want, lse[i], 0x1p-22*max(log, math.Abs(want)), "%g + ln %g", scaled, l[i])
			}
			if t.Failed() {
				return
			}
		}
	})
}
