package matmul_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/matmul"
)

// derivative is the reference for act'(x), in float64.
func derivative(act matmul.Activation, x float64) float64 {
	switch {
	case act == matmul.None:
		return 1
	case act == matmul.ReLU && x <= 0:
		return 0
	case act == matmul.ReLU:
		return 1
	case act == matmul.SiLU && math.IsInf(x, 0), act != matmul.SiLU && math.Abs(x) > 40:
		return max(0, math.Copysign(1, x))
	case act == matmul.SiLU:
		s := 1 / (1 + math.Exp(-x))
		return s + x*s*(1-s)
	case act == matmul.GELU:
		return math.Erfc(-x/math.Sqrt2)/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	}
	c := math.Sqrt(2 / math.Pi)
	s := 1 / (1 + math.Exp(-2*c*(x+0.044715*x*x*x)))
	return s + x*s*(1-s)*2*c*(1+3*0.044715*x*x)
}

// numbers returns float32 numbers of every size and sign. More of them are in the range where
// activations are curved.
func numbers(t *testing.T) (x []float32) {
	r, step := seeded(t), uint64(1<<15)
	if !testing.Short() {
		step = 1 << 11
	}
	for bits := r.Uint64N(step); bits < 1<<32; bits += step {
		x = append(x, math.Float32frombits(uint32(bits)))
	}
	for range len(x) / 2 {
		x = append(x, float32(8*r.NormFloat64()))
	}
	return append(x, 0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()))
}

// The error of Apply is a few roundings of x, or of the tiny result in the tail of GELU.
func TestApply(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		e, x := matmul.New(), numbers(t)
		defer e.Close()
		for act := matmul.None; act <= matmul.SiLU; act++ {
			y := make([]float32, len(x))
			poison(matmul.Dense(y, 1, len(y)))
			require.NoError(t, e.Apply(t.Context(), y, x, act))
			for i, v := range x {
				v := float64(v)
				bound := activationBound(act, v)
				if act == matmul.GELU && v < -2 && v > -12 {
					bound = (8 + 2*v*v) * eps * math.Abs(activation(act, v))
				}
				within(t, activation(act, v), float64(y[i]), bound+0x1p-126, "act %d of %g", act, v)
			}
			same := append([]float32(nil), x...)
			require.NoError(t, e.Apply(t.Context(), same, same, act))
			require.Equal(t, bitsOf(y), bitsOf(same), "in place")
		}
	})
}

func TestApplyGrad(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		e, x := matmul.New(), numbers(t)
		defer e.Close()
		dy, dx := make([]float32, len(x)), make([]float32, len(x))
		for i := range dy {
			dy[i] = float32(i%7) - 3
		}
		for act := matmul.None; act <= matmul.SiLU; act++ {
			poison(matmul.Dense(dx, 1, len(dx)))
			require.NoError(t, e.ApplyGrad(t.Context(), dx, x, dy, act))
			for i, v := range x {
				want := float64(dy[i]) * derivative(act, float64(v))
				if act <= matmul.ReLU && !(math.Abs(float64(v)) < 0x1p-126) { // a denormal number may count as 0
					within(t, want, float64(dx[i]), 0, "derivative of act %d at %g", act, v)
				}
				if act == matmul.ReLU {
					continue
				}
				within(t, want, float64(dx[i]), 8*eps*math.Abs(float64(dy[i]))+0x1p-120, "derivative of act %d at %g", act, v)
			}
			same := append([]float32(nil), x...)
			require.NoError(t, e.ApplyGrad(t.Context(), same, same, dy, act))
			require.Equal(t, bitsOf(dx), bitsOf(same), "in place of x")
			copy(same, dy)
			require.NoError(t, e.ApplyGrad(t.Context(), same, x, same, act))
			require.Equal(t, bitsOf(dx), bitsOf(same), "in place of dy")
		}
	})
}

// Apply and ApplyGrad are within the bounds for slices whose lengths are not multiples of a vector,
// and write nothing beyond them.
func TestApplyTails(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for n := range 70 {
			x, dy := random(r, 1, n, false, false).Data[:n], random(r, 1, n, false, false).Data[:n]
			for act := matmul.None; act <= matmul.SiLU; act++ {
				y, dx := make([]float32, n+1), make([]float32, n+1)
				y[n], dx[n] = 7, 7
				require.NoError(t, e.Apply(t.Context(), y[:n], x, act))
				require.NoError(t, e.ApplyGrad(t.Context(), dx[:n], x, dy, act))
				for i, v := range x {
					within(t, activation(act, float64(v)), float64(y[i]), activationBound(act, float64(v)), "%d of %d", i, n)
					within(t, float64(dy[i])*derivative(act, float64(v)), float64(dx[i]), 8*eps*math.Abs(float64(dy[i])), "%d of %d", i, n)
				}
				require.EqualValues(t, []float32{7, 7}, []float32{y[n], dx[n]})
			}
		}
	})
}
