package nn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
)

func TestCrossEntropy(t *testing.T) {
	l := nn.CrossEntropy{Ignore: -1}
	for _, c := range []struct {
		name    string
		logits  []float32 // of three classes
		targets []int32
		want    float64
		grad    []float32
	}{
		{"even", []float32{5, 5, 5}, []int32{1}, math.Log(3), []float32{1. / 3, -2. / 3, 1. / 3}},
		{"ignored", []float32{5, 5, 5, 1, 2, 3}, []int32{1, -1}, math.Log(3), []float32{1. / 3, -2. / 3, 1. / 3, 0, 0, 0}},
		{"mean", []float32{0, 0, 0, 0, 0, 0}, []int32{0, 2}, math.Log(3), []float32{-1. / 3, 1. / 6, 1. / 6, 1. / 6, 1. / 6, -1. / 3}},
		{"all ignored", []float32{5, 5, 5}, []int32{-1}, 0, []float32{0, 0, 0}},
		{"none", nil, nil, 0, nil},
		{"large", []float32{3e38, -3e38, 0}, []int32{0}, 0, []float32{0, 0, 0}},
		{"hopeless", []float32{1000, 0, 0}, []int32{2}, 1000, []float32{1, 0, -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := training(t)
			loss := l.Forward(s, nn.NewTensor(c.logits, len(c.targets), 1, 3), c.targets)
			grad := l.Backward(s)
			require.NoError(t, s.Err())
			require.InDelta(t, c.want, loss, 1e-12*max(1, c.want))
			near(t, "gradient", c.grad, grad.Data, 1e-7)
			s.Begin(t.Context())
			require.Equal(t, loss, l.Forward(s, nn.NewTensor(c.logits, len(c.targets), 1, 3), c.targets))
		})
	}
	s := inference(t)
	require.True(t, math.IsNaN(l.Forward(s, nn.NewTensor([]float32{0, float32(math.NaN())}, 1, 1, 2), []int32{0})))
}

func TestClipGradients(t *testing.T) {
	p := []*nn.Param{{Data: make([]float32, 2), Grad: []float32{3, 0}}, {Data: make([]float32, 1), Grad: []float32{-4}}, {Data: make([]float32, 9)}}
	require.Equal(t, 5., nn.ClipGradients(p, 6))
	require.Equal(t, []float32{3, 0}, p[0].Grad)
	require.Equal(t, 5., nn.ClipGradients(p, 1))
	near(t, "gradient", []float32{.6, 0}, p[0].Grad, 1e-6)
	near(t, "gradient", []float32{-.8}, p[1].Grad, 1e-6)
	for _, wrong := range []float64{math.Inf(1), math.NaN()} {
		p[1].Grad[0] = float32(wrong)
		before := p[0].Grad[0]
		norm := nn.ClipGradients(p, 1)
		require.True(t, math.IsInf(norm, 1) || math.IsNaN(norm))
		require.Equal(t, before, p[0].Grad[0])
	}
}

// Training resumes from a saved state with the same bits.
func TestOptimizerState(t *testing.T) {
	type optimizer interface {
		Update()
		State() []*nn.Param
	}
	for name, make := range map[string]func(p []*nn.Param) optimizer{
		"AdamW": func(p []*nn.Param) optimizer { return nn.NewAdamW(p, .1) },
		"SGD": func(p []*nn.Param) optimizer {
			o := nn.NewSGD(p, .1)
			o.Momentum = .9
			return o
		},
	} {
		new := func() (*nn.Param, optimizer) {
			p := &nn.Param{Name: "p", Shape: []int{2}, Data: []float32{1, 2}, Grad: []float32{.5, -3}}
			return p, make([]*nn.Param{p})
		}
		whole, o := new()
		for range 3 {
			o.Update()
		}
		half, first := new()
		first.Update()
		rest, second := new()
		copy(rest.Data, half.Data)
		for i, p := range first.State() {
			require.Contains(t, p.Name, ".p")
			copy(second.State()[i].Data, p.Data)
		}
		if a, ok := second.(*nn.AdamW); ok {
			a.Steps = first.(*nn.AdamW).Steps
		}
		second.Update()
		second.Update()
		require.Equal(t, whole.Data, rest.Data, name)
	}
}
