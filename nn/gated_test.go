package nn_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// Apply and ForwardInto give the bits of Forward, for any number of rows.
func TestInPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	i := nn.NewInit(3)
	gated := &nn.GatedFeedForward{Gate: nn.NewLinear(i.In("gate"), 6, 10, true), Up: nn.NewLinear(i.In("up"), 6, 10, true), Down: nn.NewLinear(i.In("down"), 10, 6, true)}
	gated.Gate.Activation = nn.GELU
	rms, layer := nn.NewRMSNorm(i, 3), nn.NewLayerNorm(i, 6)
	rotary, err := nn.NewRotary(3000, 2, 100, false)
	require.NoError(t, err)
	for _, rows := range []int{1, 5, 1023, 1024, 1025, 2500} {
		s, x := inference(t), random(r, 1, rows, 6)
		same := func(want nn.Tensor, apply func(x nn.Tensor)) {
			y := random(r, 1, rows, 8).Columns(1, 6) // with gaps between rows
			for n := range rows {
				copy(y.Row(n), x.Row(n))
			}
			apply(y)
			require.NoError(t, s.Err())
			for n := range rows {
				require.Equal(t, want.Row(n), y.Row(n))
			}
		}
		same(rms.Forward(s, x), func(x nn.Tensor) { rms.Apply(s, x) })
		same(layer.Forward(s, x), func(x nn.Tensor) { layer.Apply(s, x) })
		same(rotary.Forward(s, x, 3), func(x nn.Tensor) { rotary.Apply(s, x, 3) })
		same(s.Add(gated.Forward(s, x), x), func(x nn.Tensor) { gated.ForwardInto(s, x, x, true) })
		gate, up := gated.Gate.Forward(s, x), gated.Up.Forward(s, x)
		for n := range gate.Data {
			gate.Data[n] *= up.Data[n]
		}
		require.Equal(t, gated.Down.Forward(s, gate).Data, gated.Forward(s, x).Data)
	}
}

// The memory for hidden features does not grow with the number of rows.
func TestGatedMemory(t *testing.T) {
	i := nn.NewInit(3)
	l := &nn.GatedFeedForward{Gate: nn.NewLinear(i.In("gate"), 2, 64, false), Up: nn.NewLinear(i.In("up"), 2, 64, false), Down: nn.NewLinear(i.In("down"), 64, 2, false)}
	s := inference(t)
	l.Forward(s, nn.NewTensor(make([]float32, 2*100_000), 1, 100_000, 2))
	require.NoError(t, s.Err())
	require.Less(t, s.Memory(), 4*(2*100_000+2*64*1024)+2<<20)
}

func TestGatedErrors(t *testing.T) {
	i := nn.NewInit(3)
	x := nn.NewTensor(make([]float32, 6), 1, 1, 6)
	rms, layer := nn.NewRMSNorm(i, 4), nn.NewLayerNorm(i, 6)
	rotary, err := nn.NewScaledRotary(5, []float32{1}, 1)
	require.NoError(t, err)
	linear := nn.NewLinear(i, 6, 6, false)
	attention := &nn.MultiHeadAttention{Heads: 1, Causal: true, Band: flashkit.Window(1, 1)}
	uneven := &nn.GatedFeedForward{Gate: linear, Up: nn.NewLinear(i, 6, 5, false), Down: linear}
	for message, run := range map[string]func(s *nn.Step){
		"multiple of 4": func(s *nn.Step) { rms.Forward(s, x) },
		"beside Causal": func(s *nn.Step) { attention.Forward(s, x, x, x) },
		"x.Features":    func(s *nn.Step) { linear.ForwardInto(s, x, x.Columns(0, 5), false) },
		"y.Features":    func(s *nn.Step) { linear.ForwardInto(s, x.Columns(0, 5), x, false) },
		"y.Rows": func(s *nn.Step) {
			linear.ForwardInto(s, nn.NewTensor(make([]float32, 12), 1, 2, 6), x, false)
		},
		"up.Features":         func(s *nn.Step) { uneven.Forward(s, x) },
		"AddTo: x.Features":   func(s *nn.Step) { s.AddTo(x, x.Columns(0, 5)) },
		"AddTo: y.Features":   func(s *nn.Step) { s.AddTo(x.Part(1, 1), x) },
		"must divide":         func(s *nn.Step) { rotary.Apply(s, x, 4) },
		"beyond the 5 positi": func(s *nn.Step) { rotary.Apply(s, nn.NewTensor(make([]float32, 12), 1, 6, 2), 1) },
	} {
		s := inference(t)
		run(s)
		require.ErrorContains(t, s.Err(), message)
	}
	for name, run := range map[string]func(s *nn.Step){
		"RMSNorm.Apply":      func(s *nn.Step) { rms.Apply(s, x) },
		"LayerNorm.Apply":    func(s *nn.Step) { layer.Apply(s, x) },
		"Rotary.Apply":       func(s *nn.Step) { rotary.Apply(s, x, 3) },
		"Linear.ForwardInto": func(s *nn.Step) { linear.ForwardInto(s, x, x, false) },
		"AddTo":              func(s *nn.Step) { s.AddTo(x, x) },
	} {
		s := begin()
		run(s)
		require.ErrorContains(t, s.Err(), name+" is for inference")
	}
	_, err = nn.NewScaledRotary(5, nil, 1)
	require.Error(t, err)
	_, err = nn.NewScaledRotary(0, []float32{1}, 1)
	require.Error(t, err)
}

// The tables grow with the longest sequence, without a change of the rotations before.
func TestRotaryGrows(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	x := random(r, 1, 1300, 4)
	grown, err := nn.NewRotary(1300, 4, 10, true)
	require.NoError(t, err)
	for _, n := range []int{1, 511, 513, 1300, 2} {
		fresh, err := nn.NewRotary(1300, 4, 10, true)
		require.NoError(t, err)
		s := inference(t)
		require.Equal(t, fresh.Forward(s, x.Part(0, n), 1).Data, grown.Forward(s, x.Part(0, n), 1).Data)
		require.NoError(t, s.Err())
	}
}
