package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// hostile returns invalid tensors for a layer of 8 features.
func hostile() map[string]nn.Tensor {
	data := make([]float32, 64)
	rows := func(r nn.Rows) nn.Tensor { return nn.Tensor{Data: data, Features: 8, Rows: r} }
	stride := nn.NewTensor(data, 2, 4, 8)
	stride.Stride = 7
	far := nn.NewTensor(data, 2, 2, 8)
	far.Stride = math.MaxInt / 2
	return map[string]nn.Tensor{
		"Features":  nn.NewTensor(data, 2, 2, 7),
		"Features ": nn.NewTensor(data, 2, 2, 0),
		"Features=": nn.NewTensor(data, 2, 2, -8),
		"Features-": nn.NewTensor(data, 2, 4, 8).Columns(3, 6),
		"Features<": nn.NewTensor(data, 2, 4, 8).Columns(-1, 8),
		"Batch":     nn.NewTensor(data, -1, 2, 8),
		"T":         nn.NewTensor(data, 2, -2, 8),
		"Batch ":    nn.NewTensor(data, math.MaxInt32, math.MaxInt32, 8),
		"Data":      nn.NewTensor(data, 3, 3, 8),
		"Data ":     nn.NewTensor(nil, 1, 1, 8),
		"Data=":     far,
		"Stride":    stride,
		"Lens":      rows(nn.Padded(2, []int32{1, 3})),
		"Lens ":     rows(nn.Padded(2, []int32{-1, 1})),
		"Lens=":     rows(nn.Rows{Batch: 2, T: 2, Lens: []int32{1}}),
		"Starts":    rows(nn.Packed([]int32{0, 4, 3})),
		"Starts ":   rows(nn.Packed([]int32{1, 4})),
		"Starts=":   rows(nn.Rows{Batch: 2, T: 4, Starts: []int32{0, 4}}),
		"Starts-":   rows(nn.Rows{Batch: 1, T: 4, Starts: []int32{0, 4}, TimeFirst: true}),
		"Starts<":   rows(nn.Packed([]int32{})),
		"Starts>":   rows(nn.Packed([]int32{math.MinInt32, math.MaxInt32})),
		"T ":        rows(nn.Rows{Batch: 1, T: math.MaxInt32, Starts: []int32{0, 4}}),
		"Data-":     rows(nn.Packed([]int32{0, 4, 400})),
	}
}

// Every layer refuses invalid tensors with one error that names them, in both passes, without a
// panic.
func TestHostileTensors(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	good := func() nn.Tensor { return random(r, 2, 3, 8) }
	mha := nn.NewMultiHeadAttention(2)
	plain := nn.NewMultiHeadAttention(2)
	plain.UseFlashAttention = false
	rotary, err := nn.NewRotary(5, 4, 10000, false)
	require.NoError(t, err)
	c := nn.TransformerConfig{Embedding: 8, Hidden: 8, Layers: 1, Heads: 2, DimHead: 4, SequenceLen: 5}
	for name, l := range map[string]layer{
		"Linear": nn.NewLinear(nn.NewInit(1), 8, 8, true), "LayerNorm": nn.NewLayerNorm(nn.NewInit(1), 8),
		"Positions": nn.NewPositionalEmbedding(nn.NewInit(1), 5, 8), "Transformer": nn.NewTransformer(nn.NewInit(1), c),
		"Layer": nn.NewTransformerLayer(nn.NewInit(1), c), "Attention": selfAttention{nn.NewAttentionLayer(nn.NewInit(1), nn.AttentionConfig{QFeatures: 8, Heads: 2, DimHead: 4})},
		"mha": mhaSelf{mha}, "plain": mhaSelf{plain}, "GELU": nn.GELU, "Dropout": &nn.Dropout{P: .5}, "Rotary": rotated{rotary},
	} {
		for what, x := range hostile() {
			anyFeatures := map[string]bool{"mha": true, "plain": true, "GELU": true, "Dropout": true, "Rotary": true}
			if anyFeatures[name] && what == "Features" && name != "mha" && name != "plain" && name != "Rotary" {
				continue // 7 features are valid too
			}
			s := training(t)
			l.Forward(s, x)
			requireProblem(t, s, fmt.Sprintf("%s forward, %q", name, what))

			s = training(t)
			l.Forward(s, good())
			require.NoError(t, s.Err())
			l.Backward(s, x)
			requireProblem(t, s, fmt.Sprintf("%s backward, %q", name, what))
		}
		s := training(t)
		l.Forward(s, good())
		l.Backward(s, random(r, 3, 2, 8))
		if name != "Rotary" {
			requireProblem(t, s, name+" backward of other rows")
		}
	}
}

// A mhaSelf is self-attention without projections.
type mhaSelf struct{ *nn.MultiHeadAttention }

func (l mhaSelf) Forward(s *nn.Step, x nn.Tensor) nn.Tensor {
	return l.MultiHeadAttention.Forward(s, x, x, x)
}

func (l mhaSelf) Backward(s *nn.Step, dy nn.Tensor) nn.Tensor {
	dq, dk, dv := l.MultiHeadAttention.Backward(s, dy)
	return s.Add(dq, dk, dv)
}

type rotated struct{ *nn.Rotary }

func (l rotated) Forward(s *nn.Step, x nn.Tensor) nn.Tensor   { return l.Rotary.Forward(s, x, 2) }
func (l rotated) Backward(s *nn.Step, dy nn.Tensor) nn.Tensor { return l.Rotary.Backward(s, dy, 2) }

func requireProblem(t *testing.T, s *nn.Step, what string) {
	t.Helper()
	var wrong *flashkit.ProblemError
	require.ErrorAs(t, s.Err(), &wrong, what)
	require.NotEmpty(t, wrong.Field, what)
}

// Ranges of tokens, targets and the fields of layers.
func TestHostileNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	m, x := newModel(t, tiny), random(r, 1, 3, 8)
	cross := nn.CrossEntropy{Ignore: -100}
	attend := func(change func(m *nn.MultiHeadAttention)) func(s *nn.Step) {
		return func(s *nn.Step) {
			m := nn.NewMultiHeadAttention(4)
			change(m)
			m.Forward(s, x, x, x)
		}
	}
	for want, f := range map[string]func(s *nn.Step){
		"Tokens.IDs[1] = 11: must be from 0 to 10":        func(s *nn.Step) { m.Forward(s, nn.NewTokens([]int32{1, 11}, 1, 2)) },
		"Tokens.IDs[0] = -1":                              func(s *nn.Step) { m.Forward(s, nn.NewTokens([]int32{-1}, 1, 1)) },
		"Tokens.IDs.len = 1: must be the number of rows":  func(s *nn.Step) { m.Forward(s, nn.NewTokens([]int32{1}, 1, 2)) },
		"Tokens.Batch = -1":                               func(s *nn.Step) { m.Forward(s, nn.NewTokens(nil, -1, 2)) },
		"positions.weight: rows of sequence 0 = 13":       func(s *nn.Step) { m.Forward(s, nn.NewTokens(make([]int32, 13), 1, 13)) },
		"targets[2] = 8: must be from 0 to 7, or -100":    func(s *nn.Step) { cross.Forward(s, x, []int32{0, -100, 8}) },
		"targets.len = 2: must be the number of rows, 3":  func(s *nn.Step) { cross.Forward(s, x, []int32{0, 1}) },
		"Dropout.P = 1":                                   func(s *nn.Step) { (&nn.Dropout{P: 1}).Forward(s, x) },
		"Dropout.P = NaN":                                 func(s *nn.Step) { (&nn.Dropout{P: float32(math.NaN())}).Forward(s, x) },
		"Activation = 9":                                  func(s *nn.Step) { nn.Activation(9).Forward(s, x) },
		"MultiHeadAttention.Heads = 0":                    attend(func(m *nn.MultiHeadAttention) { m.Heads = 0 }),
		"MultiHeadAttention.KVHeads = 3":                  attend(func(m *nn.MultiHeadAttention) { m.KVHeads = 3 }),
		"MultiHeadAttention.KVHeads = -1":                 attend(func(m *nn.MultiHeadAttention) { m.KVHeads = -1 }),
		"k.Features = 8: must be 4":                       attend(func(m *nn.MultiHeadAttention) { m.KVHeads = 2 }),
		"MultiHeadAttention.Dropout = -1":                 attend(func(m *nn.MultiHeadAttention) { m.Dropout = -1 }),
		"q.Features = 8: must be a multiple of Heads = 3": attend(func(m *nn.MultiHeadAttention) { m.Heads = 3 }),
		"Scale = -1":                                      attend(func(m *nn.MultiHeadAttention) { m.Scale = -1 }),
		"Rotary = none":                                   attend(func(m *nn.MultiHeadAttention) { m.Rotary = new(nn.Rotary) }),
		"Linear.Weight = none":                            func(s *nn.Step) { new(nn.Linear).Forward(s, x) },
		"LayerNorm.Weight = none":                         func(s *nn.Step) { new(nn.LayerNorm).Forward(s, x) },
		"Embedding.Weight = none":                         func(s *nn.Step) { new(nn.Embedding).Forward(s, nn.NewTokens([]int32{0}, 1, 1)) },
		"PositionalEmbedding.Weight = none":               func(s *nn.Step) { new(nn.PositionalEmbedding).Forward(s, x) },
		"weight.Data.len = 1": func(s *nn.Step) {
			l := nn.NewLinear(nn.NewInit(1), 8, 8, false)
			l.Weight.Data = l.Weight.Data[:1]
			l.Forward(s, x)
		},
		"weight: Eps = -1":       func(s *nn.Step) { l := nn.NewLayerNorm(nn.NewInit(1), 8); l.Eps = -1; l.Forward(s, x) },
		"weight: residual.Rows":  func(s *nn.Step) { nn.NewLinear(nn.NewInit(1), 8, 8, false).ForwardAdd(s, x, random(r, 3, 1, 8)) },
		"NewTensor.features = 0": func(s *nn.Step) { s.NewTensor(x.Rows, 0) },
		"NewTensor.Batch = -3":   func(s *nn.Step) { s.NewTensor(nn.Rows{Batch: -3, T: 2}, 1) },
		"Add: x.Features = 7":    func(s *nn.Step) { s.Add(x, random(r, 1, 3, 7)) },
	} {
		s := training(t)
		f(s)
		requireProblem(t, s, want)
		require.ErrorContains(t, s.Err(), want)
	}
}

// An invalid configuration is one error, and its layers refuse to run.
func TestHostileConfigs(t *testing.T) {
	for want, change := range map[string]func(c *nn.LanguageModelConfig){
		"embedding.weight.Shape":                                     func(c *nn.LanguageModelConfig) { c.Vocabulary = 0 },
		fmt.Sprintf("embedding.weight.Shape = [%d", math.MaxInt/2+1): func(c *nn.LanguageModelConfig) { c.Vocabulary = math.MaxInt/2 + 1 },
		"positions.weight.Shape":                                     func(c *nn.LanguageModelConfig) { c.SequenceLen = -1 },
		"TransformerConfig.Layers = 0":                               func(c *nn.LanguageModelConfig) { c.Layers = 0 },
		"AttentionConfig.Heads = 0":                                  func(c *nn.LanguageModelConfig) { c.Heads = 0 },
		"DimHead = -1":                                               func(c *nn.LanguageModelConfig) { c.DimHead = -1 },
		"layers.0.linear1.weight.Shape":                              func(c *nn.LanguageModelConfig) { c.Hidden = 0 },
		"Dropout.P = 1.5":                                            func(c *nn.LanguageModelConfig) { c.Dropout = 1.5 },
		"[11 -3]":                                                    func(c *nn.LanguageModelConfig) { c.Embedding = -3 },
	} {
		c, i := tiny, nn.NewInit(1)
		change(&c)
		m := nn.NewLanguageModel(i, c)
		require.ErrorContains(t, i.Err(), want)
		s := training(t)
		m.Forward(s, nn.NewTokens([]int32{1, 2}, 1, 2))
		if c.Layers > 0 && c.Dropout < 1 {
			require.Error(t, s.Err(), want)
		}
	}
	for _, c := range []struct {
		positions, dim int
		base           float64
	}{{0, 2, 1}, {1, 3, 1}, {1, 0, 1}, {1, 2, 0}, {1, 2, math.NaN()}, {1, 2, math.Inf(1)}, {math.MaxInt, 2, 1}} {
		_, err := nn.NewRotary(c.positions, c.dim, c.base, false)
		require.ErrorContains(t, err, "Rotary: ")
	}
}
