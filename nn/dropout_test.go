package nn_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
)

func TestDropout(t *testing.T) {
	const n = 100_000
	x := nn.NewTensor(make([]float32, n), 1, n/10, 10)
	for i := range x.Data {
		x.Data[i] = float32(i + 1)
	}
	masks := map[string][]bool{}
	s := engine.NewStep()
	for _, c := range []struct {
		name       string
		seed, step uint64
		p          float32
	}{{"first", 1, 1, .25}, {"seed", 2, 1, .25}, {"step", 1, 2, .25}, {"much", 1, 1, .9}, {"again", 1, 1, .25}} {
		s.BeginTraining(t.Context(), c.seed, c.step)
		l := &nn.Dropout{P: c.p}
		y := l.Forward(s, x)
		second := l.Forward(s, x)
		require.NoError(t, s.Err())
		require.NotEqual(t, y.Data, second.Data, "each dropout of a pass drops others")
		dropped, mask := 0, make([]bool, n)
		for i, v := range y.Data {
			if mask[i] = v == 0; mask[i] {
				dropped++
				continue
			}
			if keep := float32(65536 / (65536 - math.Round(65536*float64(c.p)))); v != x.Data[i]*keep {
				require.Failf(t, "scale", "element %d is %v, want %v times %v", i, v, x.Data[i], keep)
			}
		}
		p := float64(c.p)
		require.InDelta(t, p*n, dropped, 5*math.Sqrt(p*(1-p)*n), "the rate, within five standard deviations")
		masks[c.name] = mask

		l.Backward(s, second) // of the second Forward
		dx := l.Backward(s, x)
		require.NoError(t, s.Err())
		require.Equal(t, y.Data, dx.Data, "the gradient is dropped as the input was")
	}
	require.Equal(t, masks["first"], masks["again"])
	for _, other := range []string{"seed", "step"} {
		same := 0
		for i, m := range masks[other] {
			if m == masks["first"][i] {
				same++
			}
		}
		require.InDelta(t, (.25*.25+.75*.75)*n, same, 1000, "independent of the first")
	}
	s.Begin(t.Context())
	require.Equal(t, x, (&nn.Dropout{P: .5}).Forward(s, x), "nothing in inference")
}

// The dropout mask depends on row and feature, not on the memory layout.
func TestDropoutOfColumns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	wide := random(r, 2, 3, 9)
	view := wide.Columns(2, 5)
	dense := nn.NewTensor(nil, 2, 3, 5)
	for i := range 6 {
		dense.Data = append(dense.Data, view.Row(i)...)
	}
	l := &nn.Dropout{P: .5}
	a, b := training(t), training(t)
	require.Equal(t, l.Forward(a, dense).Data, l.Forward(b, view).Data)
	require.NoError(t, b.Err())
}
