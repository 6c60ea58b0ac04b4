package elements

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
)

// Steps on slices of every length are within the bound of float64 results and write nothing beyond
// the slices.
func TestAdamW(t *testing.T) {
	a := AdamW{.9, .1, .999, .001, .99999, .002, 3, 1e-8}
	for name, way := range ways() {
		r := rand.New(rand.NewPCG(rand.Uint64(), 5))
		for n := 1; n <= 140; n++ {
			x, mean, square, grad := normal(r, n+1), normal(r, n+1), normal(r, n+1), normal(r, n+1)
			for i, v := range square {
				square[i] = v * v
			}
			grad[0] *= 1e-6
			y, m, v, g := slices.Clone(x), slices.Clone(mean), slices.Clone(square), slices.Clone(grad)
			way.update(&a, y[:n], m[:n], v[:n], g[:n])
			require.Equal(t, grad, g)
			for i := range n {
				wantM := float64(a.Beta1)*float64(mean[i]) + float64(a.Beta1Rest)*float64(g[i])
				wantV := float64(a.Beta2)*float64(square[i]) + float64(a.Beta2Rest)*float64(g[i])*float64(g[i])
				want := float64(x[i])*float64(a.Decay) - float64(a.Rate)*wantM/(math.Sqrt(wantV)*float64(a.Root)+float64(a.Eps))
				require.InDelta(t, wantM, m[i], 0x1p-22*(math.Abs(float64(mean[i]))+math.Abs(float64(g[i]))), "%s, %d, mean %d", name, n, i)
				require.InEpsilon(t, wantV, v[i], 0x1p-22, "%s, %d, square %d", name, n, i)
				change := math.Abs(want - float64(x[i]))
				require.InDelta(t, want, y[i], 0x1p-22*(math.Abs(want)+4*change+float64(a.Rate)/math.Sqrt(wantV)), "%s, %d, x %d", name, n, i)
			}
			require.Equal(t, []float32{x[n], mean[n], square[n]}, []float32{y[n], m[n], v[n]}, "%s, %d, beyond the end", name, n)
		}
	}
	a.Update(nil, nil, nil, nil)
}

func TestAdamWAllocates(t *testing.T) {
	a, x := AdamW{Eps: 1}, make([]float32, 100)
	require.Zero(t, allocs.PerRun(10, func() { a.Update(x, x, x, x) }))
}
