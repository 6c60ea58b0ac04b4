package elements

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// NormGradients matches float64 for every width, in place and not. It adds to the old gradients of
// weight and bias, and writes nothing outside the rows.
func TestNormGradients(t *testing.T) {
	widths := []int{384, 1021}
	for n := 1; n <= 140; n++ {
		widths = append(widths, n)
	}
	for name, way := range ways() {
		r := rand.New(rand.NewPCG(rand.Uint64(), 2))
		for _, n := range widths {
			count := 1 + r.IntN(4)
			weight, x, dy, y := normal(r, n), normal(r, n*count), normal(r, n*count), make([]float32, n*count)
			dWeight, dBias := normal(r, n), normal(r, n)
			moments := make([]float32, 2*count)
			way.rowsOf(y, x, weight, make([]float32, n), moments, 1e-5)
			wantX, wantWeight, wantBias := exactGradients(x, dy, weight, dWeight, dBias)

			const guard = 40
			memory := slices.Repeat([]float32{float32(math.NaN())}, len(x)+2*guard)
			dx := memory[guard:][:len(x):len(x)]
			w, b := slices.Clone(dWeight), slices.Clone(dBias)
			way.gradientsOf(dx, x, dy, weight, moments, w, b)
			for i, v := range memory {
				require.Equal(t, i < guard || i >= guard+len(x), v != v, "%s, %d features: element %d", name, n, i-guard)
			}
			near(t, name+" dx", wantX, dx, 1e-4)
			near(t, name+" dWeight", wantWeight, w, 1e-4)
			near(t, name+" dBias", wantBias, b, 1e-5)

			again := slices.Clone(dy)
			way.gradientsOf(again, x, again, weight, moments, dWeight, dBias)
			require.Equal(t, dx, again, "%s, %d features, in place", name, n)
			require.Equal(t, w, dWeight)
			require.Equal(t, b, dBias)
		}
	}
}

// Add sums rows in order, with gaps between them and without.
func TestAdd(t *testing.T) {
	for name, way := range ways() {
		r := rand.New(rand.NewPCG(rand.Uint64(), 3))
		for n := 1; n <= 140; n++ {
			step, rows := n+r.IntN(3)*r.IntN(40), 1+r.IntN(5)
			x, sum := normal(r, (rows-1)*step+n), normal(r, n+1)
			want := slices.Clone(sum)
			for i := range rows {
				for j := range n {
					want[j] += x[i*step+j]
				}
			}
			way.addTo(sum[:n], x, step, rows)
			require.Equal(t, want, sum, "%s, %d columns", name, n)
		}
	}
	Add(nil, nil, 5, 3)
	Add([]float32{1}, nil, 1, 0)
}

func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// exactGradients returns dx and the new dWeight and dBias, in float64.
func exactGradients(x, dy, weight, dWeight, dBias []float32) (dx, w, b []float64) {
	n := len(weight)
	for i := range n {
		w, b = append(w, float64(dWeight[i])), append(b, float64(dBias[i]))
	}
	for ; len(x) > 0; x, dy = x[n:], dy[n:] {
		mean, scale := momentsOf(x[:n], 1e-5)
		sum, dot := 0.0, 0.0
		for i, d := range dy[:n] {
			y := (float64(x[i]) - mean) * scale
			sum += float64(d) * float64(weight[i]) / float64(n)
			dot += float64(d) * float64(weight[i]) * y / float64(n)
			w[i] += float64(d) * y
			b[i] += float64(d)
		}
		for i, d := range dy[:n] {
			dx = append(dx, scale*(float64(d)*float64(weight[i])-sum-(float64(x[i])-mean)*scale*dot))
		}
	}
	return dx, w, b
}

// near fails unless got is within bound of want, relative to the largest number.
func near(t *testing.T, what string, want []float64, got []float32, bound float64) {
	t.Helper()
	largest := 1.0
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	for i, v := range want {
		require.InDelta(t, v, float64(got[i]), bound*largest, "%s, %d numbers: element %d", what, len(want), i)
	}
}
