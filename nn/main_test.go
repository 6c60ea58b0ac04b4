package nn_test

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn"
)

// engine computes for all tests.
var engine *nn.Engine

func TestMain(m *testing.M) {
	d := dispatch.New(simd.New()).Frozen()
	engine = nn.NewEngine(d)
	code := m.Run()
	engine.Close()
	d.Close()
	os.Exit(code)
}

// training returns a Step that has begun.
func training(t *testing.T) *nn.Step {
	s := engine.NewStep()
	s.BeginTraining(t.Context(), 1, 2)
	return s
}

// inference returns a Step that has begun.
func inference(t *testing.T) *nn.Step {
	s := engine.NewStep()
	s.Begin(t.Context())
	return s
}

// random returns a tensor of normally distributed numbers.
func random(r *rand.Rand, batch, t, features int) nn.Tensor {
	return nn.NewTensor(randoms(r, batch*t*features), batch, t, features)
}

func randoms(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// near fails unless got is within tolerance of want, absolute up to 1 and relative above.
func near(t *testing.T, what string, want, got []float32, tolerance float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - float64(w)); !(d <= tolerance*max(1, math.Abs(float64(w)))) {
			require.Failf(t, what, "element %d = %v, want %v: off by %.3g, bound %.3g", i, got[i], w, d, tolerance)
		}
	}
}
