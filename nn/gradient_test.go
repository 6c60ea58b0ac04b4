package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
)

// checkGradient compares a gradient with the loss. Between two points the loss changes by the
// integral of the gradient along the way, computed in many small steps. A single small difference
// of float32 losses would show more rounding than slope. loss runs both passes and returns the sum
// of the outputs times fixed numbers.
func checkGradient(t *testing.T, what string, x []float32, loss func() (float64, []float32)) {
	t.Helper()
	const steps, size = 48, 0.05
	r := rand.New(rand.NewPCG(1, uint64(len(x))))
	at, way := append([]float32(nil), x...), make([]float64, len(x))
	for i := range way {
		way[i] = size * r.NormFloat64()
	}
	move := func(part float64) (moved []float64) {
		for i := range x {
			x[i] = float32(float64(at[i]) + part*way[i])
			moved = append(moved, float64(x[i]))
		}
		return moved
	}
	start := move(0)
	before, _ := loss()
	integral, steepest := 0.0, 0.0
	for k := range steps { // the actual step in float32
		from := move(float64(k) / steps)
		to := move(float64(k+1) / steps)
		move((float64(k) + .5) / steps)
		_, gradient := loss()
		require.Len(t, gradient, len(x), what)
		for i, g := range gradient {
			integral += float64(g) * (to[i] - from[i])
		}
	}
	end := move(1)
	after, _ := loss()
	_, gradient := loss()
	for i, g := range gradient {
		steepest += math.Abs(float64(g) * (end[i] - start[i]))
	}
	copy(x, at)
	require.Greater(t, steepest, 1e-3, "%s: the gradient says nothing", what)
	require.InDelta(t, after-before, integral, 2e-4*steepest+1e-5, "%s: the loss and its gradient", what)
}

// A run is a forward pass and a function for its backward pass.
type run func(s *nn.Step, x []nn.Tensor) (y nn.Tensor, back func(dy nn.Tensor) []nn.Tensor)

// checkLayer checks the gradients of a layer's inputs and parameters.
func checkLayer(t *testing.T, params []*nn.Param, inputs []nn.Tensor, layer run) {
	t.Helper()
	s := engine.NewStep()
	var weights []float32
	both := func(gradient func(dx []nn.Tensor) []float32) func() (float64, []float32) {
		return func() (float64, []float32) {
			s.BeginTraining(t.Context(), 5, 6)
			nn.ZeroGrads(params)
			for _, p := range params {
				p.Changed()
			}
			y, back := layer(s, inputs)
			require.NoError(t, s.Err())
			if weights == nil {
				weights = randoms(rand.New(rand.NewPCG(3, 4)), len(y.Data))
			}
			sum := 0.0
			for i, v := range y.Data {
				sum += float64(v) * float64(weights[i])
			}
			dy := y
			dy.Data = weights
			dx := back(dy)
			require.NoError(t, s.Err())
			return sum, gradient(dx)
		}
	}
	for i, x := range inputs {
		checkGradient(t, fmt.Sprintf("input %d", i), x.Data, both(func(dx []nn.Tensor) []float32 { return dx[i].Data }))
	}
	for _, p := range params {
		if p.Name == "norm_k.bias" || p.Name == "attention.norm_k.bias" {
			continue // it shifts all scores of a row equally, so its gradient is 0 up to rounding
		}
		checkGradient(t, p.Name, p.Data, both(func([]nn.Tensor) []float32 { return p.Grad }))
	}
}

// one returns the run of a layer with one input.
func one(l layer) run {
	return func(s *nn.Step, x []nn.Tensor) (nn.Tensor, func(nn.Tensor) []nn.Tensor) {
		return l.Forward(s, x[0]), func(dy nn.Tensor) []nn.Tensor { return []nn.Tensor{l.Backward(s, dy)} }
	}
}

// three returns the run of a layer of q, k and v.
func three(l interface {
	Forward(s *nn.Step, q, k, v nn.Tensor) nn.Tensor
	Backward(s *nn.Step, dy nn.Tensor) (dq, dk, dv nn.Tensor)
}) run {
	return func(s *nn.Step, x []nn.Tensor) (nn.Tensor, func(nn.Tensor) []nn.Tensor) {
		return l.Forward(s, x[0], x[1], x[2]), func(dy nn.Tensor) []nn.Tensor {
			dq, dk, dv := l.Backward(s, dy)
			return []nn.Tensor{dq, dk, dv}
		}
	}
}

func TestGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, dropout := range []float32{0, .3} {
		t.Run(fmt.Sprintf("dropout=%v", dropout), func(t *testing.T) {
			t.Run("Linear", func(t *testing.T) {
				for _, a := range []nn.Activation{nn.None, nn.GELU, nn.GELUTanh, nn.SiLU} { // not ReLU, as below
					l := nn.NewLinear(nn.NewInit(1), 7, 5, true)
					l.Activation = a
					checkLayer(t, l.Params(), []nn.Tensor{random(r, 2, 3, 7)}, one(l))
				}
			})
			t.Run("LayerNorm", func(t *testing.T) {
				l := nn.NewLayerNorm(nn.NewInit(1), 7)
				checkLayer(t, l.Params(), []nn.Tensor{random(r, 3, 30, 7)}, one(l))
			})
			t.Run("RMSNorm", func(t *testing.T) {
				l := nn.NewRMSNorm(nn.NewInit(1), 7)
				l.Offset = .5
				checkLayer(t, l.Params(), []nn.Tensor{random(r, 3, 30, 14)}, one(l))
			})
			t.Run("GatedFeedForward", func(t *testing.T) {
				i := nn.NewInit(1)
				l := &nn.GatedFeedForward{Gate: nn.NewLinear(i.In("gate"), 7, 9, true), Up: nn.NewLinear(i.In("up"), 7, 9, false), Down: nn.NewLinear(i.In("down"), 9, 7, true)}
				l.Gate.Activation = nn.SiLU
				checkLayer(t, l.Params(), []nn.Tensor{random(r, 2, 3, 7)}, one(l))
			})
			t.Run("PositionalEmbedding", func(t *testing.T) {
				l := nn.NewPositionalEmbedding(nn.NewInit(1), 4, 7)
				checkLayer(t, l.Params(), []nn.Tensor{random(r, 2, 3, 7)}, one(l))
			})
			t.Run("Activation", func(t *testing.T) {
				for _, a := range []nn.Activation{nn.ReLU, nn.GELU, nn.GELUTanh, nn.SiLU} {
					x := random(r, 2, 3, 7)
					for i, v := range x.Data { // away from the jump of ReLU's derivative
						x.Data[i] = v + float32(math.Copysign(1, float64(v)))
					}
					checkLayer(t, nil, []nn.Tensor{x}, one(a))
				}
			})
			t.Run("Dropout", func(t *testing.T) {
				checkLayer(t, nil, []nn.Tensor{random(r, 2, 3, 7)}, one(&nn.Dropout{P: dropout}))
			})
			for _, flash := range []bool{true, false} {
				t.Run(fmt.Sprintf("MultiHeadAttention/flash=%v", flash), func(t *testing.T) {
					l := nn.NewMultiHeadAttention(4)
					l.KVHeads, l.Causal, l.Dropout, l.UseFlashAttention = 2, true, dropout, flash
					l.Rotary, _ = nn.NewRotary(9, 4, 100, dropout > 0)
					checkLayer(t, nil, []nn.Tensor{random(r, 2, 5, 4*6), random(r, 2, 9, 2*6), random(r, 2, 9, 2*3)}, three(l))
				})
				t.Run(fmt.Sprintf("AttentionLayer/flash=%v", flash), func(t *testing.T) {
					l := nn.NewAttentionLayer(nn.NewInit(1), nn.AttentionConfig{QFeatures: 6, KFeatures: 5, VFeatures: 4, OutFeatures: 3, Heads: 2, DimHead: 8, Dropout: dropout})
					l.UseFlashAttention(flash)
					checkLayer(t, l.Params(), []nn.Tensor{random(r, 2, 5, 6), random(r, 2, 7, 5), random(r, 2, 7, 4)}, three(l))
				})
				t.Run(fmt.Sprintf("TransformerLayer/flash=%v", flash), func(t *testing.T) {
					l := nn.NewTransformerLayer(nn.NewInit(1), nn.TransformerConfig{Embedding: 8, Hidden: 10, Heads: 2, DimHead: 4, Dropout: dropout, Causal: true})
					l.Linear1.Activation = nn.GELU // ReLU's derivative jumps, which the integral would have to hit
					l.UseFlashAttention(flash)
					checkLayer(t, l.Params(), []nn.Tensor{random(r, 2, 6, 8)}, one(l))
				})
			}
		})
	}
}

// The loss of a whole model: embeddings, layers, head and cross entropy, with an ignored row.
func TestGradientsOfLoss(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	tokens, targets := someTokens(r, 2, 6, 5), someTokens(r, 2, 6, 5).IDs
	targets[4] = -100
	const counted = 11
	for _, flash := range []bool{true, false} {
		for _, dropout := range []float32{0, .3} {
			t.Run(fmt.Sprintf("flash=%v/dropout=%v", flash, dropout), func(t *testing.T) {
				m := newModel(t, nn.LanguageModelConfig{Vocabulary: 5, TransformerConfig: nn.TransformerConfig{
					Embedding: 8, Hidden: 10, Layers: 2, Heads: 2, DimHead: 4, Dropout: dropout, Causal: true, SequenceLen: 6}})
				m.UseFlashAttention(flash)
				for _, l := range m.Transformer.Layers {
					l.Linear1.Activation = nn.GELU // ReLU's derivative jumps
				}
				params, s, cross := m.Params(), engine.NewStep(), nn.CrossEntropy{Ignore: -100}
				for _, p := range params {
					if strings.HasSuffix(p.Name, "norm_k.bias") {
						continue // its gradient is 0 up to rounding
					}
					checkGradient(t, p.Name, p.Data, func() (float64, []float32) {
						s.BeginTraining(t.Context(), 5, 6)
						nn.ZeroGrads(params)
						p.Changed()
						loss := cross.Forward(s, m.Forward(s, tokens), targets)
						m.Backward(s, cross.Backward(s))
						require.NoError(t, s.Err())
						for i := range p.Grad {
							p.Grad[i] *= counted
						}
						return counted * loss, p.Grad // the sum of the rows' losses
					})
				}
			})
		}
	}
}
