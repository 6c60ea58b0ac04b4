package elements

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
)

// ways returns the implementations of this machine, by name.
func ways() map[string]*isa {
	w := available()
	if w == nil {
		w = map[string]*isa{}
	}
	w["portable"] = nil
	return w
}

// momentsOf returns the mean of a row and 1/sqrt(variance + eps).
func momentsOf(x []float32, eps float32) (mean, scale float64) {
	n, variance := float64(len(x)), 0.0
	for _, v := range x {
		mean += float64(v) / n
	}
	for _, v := range x {
		variance += (float64(v) - mean) * (float64(v) - mean) / n
	}
	return mean, 1 / math.Sqrt(variance+float64(eps))
}

// exact returns the layer norm of a row in float64, and bounds of its rounding errors.
func exact(x, weight, bias []float32, eps float32) (y, bound []float64) {
	mean, scale := momentsOf(x, eps)
	largest := 0.0
	for _, v := range x {
		largest = max(largest, math.Abs(float64(v)))
	}
	for i, v := range x {
		d := (float64(v) - mean) * scale
		y = append(y, d*float64(weight[i])+float64(bias[i]))
		// The error of the mean is a rounding error of the largest numbers. Other errors are
		// rounding errors of d.
		bound = append(bound, 0x1p-22*((2+math.Abs(d)+4*largest*scale)*math.Abs(float64(weight[i]))+math.Abs(float64(bias[i]))))
	}
	return y, bound
}

// Norm matches float64 for every width, in place and not. It writes nothing outside the rows.
func TestNorm(t *testing.T) {
	widths := []int{384, 768, 1021, 1024}
	for n := 1; n <= 150; n++ {
		widths = append(widths, n)
	}
	for name, way := range ways() {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range widths {
			count := 1 + r.IntN(4)
			weight, bias, x := make([]float32, n), make([]float32, n), make([]float32, n*count)
			for i := range weight {
				weight[i], bias[i] = float32(r.NormFloat64()), float32(r.NormFloat64())
			}
			for row := range count {
				offset, size := r.NormFloat64()*math.Pow(10, float64(row)), math.Pow(10, float64(r.IntN(8)-4))
				for i := range n {
					x[row*n+i] = float32(size * (r.NormFloat64() + offset))
				}
			}
			const guard = 40
			memory := make([]float32, len(x)+2*guard)
			for i := range memory {
				memory[i] = float32(math.NaN())
			}
			dst := memory[guard:][:len(x):len(x)]
			before := slices.Clone(x)
			moments := []float32(nil)
			if n%2 == 0 {
				moments = make([]float32, 2*count)
			}
			way.rowsOf(dst, x, weight, bias, moments, 1e-12)
			require.Equal(t, before, x)
			for i, v := range memory {
				require.Equal(t, i < guard || i >= guard+len(x), v != v, "%s, %d features: element %d", name, n, i-guard)
			}
			for row := range count {
				want, bound := exact(x[row*n:][:n], weight, bias, 1e-12)
				for i := range n {
					if d := math.Abs(float64(dst[row*n+i]) - want[i]); n > 1 && !(d <= bound[i]) {
						t.Fatalf("%s, %d features, row %d, feature %d: %g, want %g, within %g", name, n, row, i, dst[row*n+i], want[i], bound[i])
					}
				}
			}
			if n == 1 {
				require.Equal(t, slices.Repeat(bias, count), dst, name)
			}
			for row := range len(moments) / 2 {
				mean, scale := momentsOf(x[row*n:][:n], 1e-12)
				require.InDelta(t, mean, moments[2*row], 0x1p-21*(math.Abs(mean)+1/scale))
				require.InEpsilon(t, scale, moments[2*row+1], 1e-4)
			}
			way.rowsOf(x, x, weight, bias, nil, 1e-12)
			require.Equal(t, dst, x, "%s, %d features, in place", name, n)
		}
	}
}

// The result of a row has the same bits alone and among other rows, at any address, even next to
// rows of NaN and infinity.
func TestNormAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name, way := range ways() {
		for _, n := range []int{5, 16, 37, 384} {
			weight, bias, x := make([]float32, n), make([]float32, n), make([]float32, 5*n)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			copy(weight, x[n:])
			x[2*n+n/2], x[4*n] = float32(math.NaN()), float32(math.Inf(1))
			all := make([]float32, 5*n)
			way.rowsOf(all, x, weight, bias, nil, 1e-5)
			for row := range 5 {
				alone := make([]float32, n+1)[1:]
				way.rowsOf(alone, append([]float32{0}, x[row*n:][:n]...)[1:], weight, bias, nil, 1e-5)
				require.Equal(t, fmt.Sprint(all[row*n:][:n]), fmt.Sprint(alone), name)
				require.Equal(t, row == 2 || row == 4, alone[0] != alone[0], "%s, row %d", name, row)
			}
		}
	}
}

func TestNormOfNothing(t *testing.T) {
	Norm(nil, nil, []float32{1}, []float32{1}, nil, 1)
}

func TestNormAllocates(t *testing.T) {
	x, w := make([]float32, 4*384), make([]float32, 384)
	require.Zero(t, allocs.PerRun(10, func() { Norm(x, x, w, w, nil, 1e-5) }))
}

func BenchmarkNorm(b *testing.B) {
	x, w := make([]float32, 128*384), make([]float32, 384)
	for i := range x {
		x[i] = float32(i % 7)
	}
	for name, way := range ways() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				way.rowsOf(x, x, w, w, nil, 1e-5)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*128), "ns/row")
		})
	}
}
