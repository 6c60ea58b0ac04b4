//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransposeBits(t *testing.T) {
	var src, dst [maskGroup]uint32
	for r := range src {
		src[r], dst[r] = rand.Uint32(), rand.Uint32()
	}
	transposeBits(&dst, &src)
	for r := range src {
		for c := range dst {
			require.Equal(t, src[r]>>c&1, dst[c]>>r&1, "row %d, column %d", r, c)
		}
	}
}

// finite returns true only if all elements of all rows are finite. It ignores elements between
// rows.
func TestFinite(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		sums := make([]float32, isa.lanes)
		for range trials(300) {
			n, vdim := 1+r.IntN(40), 1+r.IntN(4*isa.lanes)
			step := vdim + r.IntN(2)*r.IntN(9)
			v := make([]float32, (n-1)*step+vdim)
			for i := range v {
				v[i] = float32(r.NormFloat64())
				if i%step >= vdim {
					v[i] = float32(math.NaN())
				}
			}
			require.True(t, isa.finite(v, step, n, vdim, sums), "%d rows of %d, %d apart", n, vdim, step)
			at := r.IntN(n)*step + r.IntN(vdim)
			v[at] = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[r.IntN(3)]
			require.False(t, isa.finite(v, step, n, vdim, sums), "%g at %d: %d rows of %d, %d apart", v[at], at, n, vdim, step)
		}
	})
}
