package nn_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A cell is a file of tools/nn_vectors.py: PyTorch's results for a layer.
type cell struct {
	*safetensors.File
	config struct {
		Layer                                                                      string
		Batch, T, Features, Heads, Hidden, Layers, Vocabulary, Keys, Rotary, Steps int
		KVHeads                                                                    int  `json:"kv_heads"`
		DimHead                                                                    int  `json:"dim_head"`
		DimValue                                                                   int  `json:"dim_value"`
		KFeatures                                                                  int  `json:"k_features"`
		VFeatures                                                                  int  `json:"v_features"`
		OutFeatures                                                                int  `json:"out_features"`
		SequenceLen                                                                int  `json:"sequence_len"`
		TimeFirst                                                                  bool `json:"time_first"`
		Bias, Causal, Interleaved                                                  bool
		Eps, LR, Momentum, Clip                                                    float64
		WeightDecay                                                                float64 `json:"weight_decay"`
	}
}

func readCell(t *testing.T, file string) *cell {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	if strings.HasSuffix(file, ".gz") {
		r, err := gzip.NewReader(bytes.NewReader(b))
		require.NoError(t, err)
		b, err = io.ReadAll(r)
		require.NoError(t, err)
	}
	f, err := safetensors.Parse(b)
	require.NoError(t, err)
	c := &cell{File: f}
	require.NoError(t, json.Unmarshal([]byte(f.Metadata["config"]), &c.config))
	return c
}

func (c *cell) floats(t *testing.T, name string) []float32 {
	x, ok := c.Tensor(name)
	require.True(t, ok, name)
	data, err := x.Float32s()
	require.NoError(t, err)
	return data
}

func (c *cell) ints(t *testing.T, name string) []int32 {
	x, ok := c.Tensor(name)
	require.True(t, ok, name)
	data, err := x.Int32s()
	require.NoError(t, err)
	return data
}

// tensor returns an activation [batch, t, features], or [t, batch, features].
func (c *cell) tensor(t *testing.T, name string) nn.Tensor {
	x, ok := c.Tensor(name)
	require.True(t, ok, name)
	y := nn.NewTensor(c.floats(t, name), x.Shape[0], x.Shape[1], x.Shape[2])
	if c.config.TimeFirst {
		y.Batch, y.T, y.TimeFirst = y.T, y.Batch, true
	}
	return y
}

// fill sets exactly the cell's parameters.
func (c *cell) fill(t *testing.T, params []*nn.Param) {
	f := &safetensors.File{}
	for _, x := range c.Tensors {
		if name, ok := strings.CutPrefix(x.Name, "param."); ok {
			x.Name = name
			f.Tensors = append(f.Tensors, x)
		}
	}
	require.NoError(t, nn.Assign(f, params))
	nn.ZeroGrads(params)
}

// TestValues compares every layer with PyTorch in float64, with flash and plain attention: outputs,
// gradients of inputs and of parameters. FLASHKIT_NN_VALUES names a folder of more cells: make
// nn-values.
func TestValues(t *testing.T) {
	files, err := filepath.Glob("testdata/*.safetensors.gz")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	if folder := os.Getenv("FLASHKIT_NN_VALUES"); folder != "" {
		more, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
		require.NoError(t, err)
		require.Len(t, more, 72*7, "the grid")
		files = append(files, more...)
	}
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		t.Run(name, func(t *testing.T) {
			c := readCell(t, file)
			run, ok := layers[c.config.Layer]
			require.True(t, ok, c.config.Layer)
			for _, flash := range []bool{true, false} {
				run(t, c, flash)
			}
		})
	}
}

// layers run a cell, with flash attention or without.
var layers = map[string]func(t *testing.T, c *cell, flash bool){
	"linear": func(t *testing.T, c *cell, _ bool) {
		l := nn.NewLinear(nn.NewInit(1), c.config.Features, c.config.OutFeatures, c.config.Bias)
		c.check(t, l, l)
	},
	"layer_norm": func(t *testing.T, c *cell, _ bool) {
		l := nn.NewLayerNorm(nn.NewInit(1), c.config.Features)
		l.Eps = float32(c.config.Eps)
		c.check(t, l, l)
	},
	"positions": func(t *testing.T, c *cell, _ bool) {
		l := nn.NewPositionalEmbedding(nn.NewInit(1), c.config.SequenceLen, c.config.Features)
		c.check(t, l, l)
	},
	"embedding": func(t *testing.T, c *cell, _ bool) {
		l := nn.NewEmbedding(nn.NewInit(1), c.config.Vocabulary, c.config.Features)
		c.fill(t, l.Params())
		s := training(t)
		y := l.Forward(s, nn.NewTokens(c.ints(t, "in.tokens"), c.config.Batch, c.config.T))
		l.Backward(s, c.tensor(t, "dy"))
		require.NoError(t, s.Err())
		near(t, "out", c.floats(t, "out"), y.Data, 1e-5)
		c.checkGrads(t, l.Params(), 1e-5)
	},
	"relu":      func(t *testing.T, c *cell, _ bool) { c.check(t, nil, nn.ReLU) },
	"gelu":      func(t *testing.T, c *cell, _ bool) { c.check(t, nil, nn.GELU) },
	"gelu_tanh": func(t *testing.T, c *cell, _ bool) { c.check(t, nil, nn.GELUTanh) },
	"attention": func(t *testing.T, c *cell, flash bool) {
		l := nn.NewMultiHeadAttention(c.config.Heads)
		l.KVHeads, l.Causal, l.UseFlashAttention = c.config.KVHeads, c.config.Causal, flash
		if c.config.Rotary > 0 {
			var err error
			l.Rotary, err = nn.NewRotary(c.config.T, c.config.Rotary, 10000, c.config.Interleaved)
			require.NoError(t, err)
		}
		c.checkThree(t, nil, l)
	},
	"attention_layer": func(t *testing.T, c *cell, flash bool) {
		i := nn.NewInit(1)
		l := nn.NewAttentionLayer(i, nn.AttentionConfig{QFeatures: c.config.Features, KFeatures: c.config.KFeatures,
			VFeatures: c.config.VFeatures, OutFeatures: c.config.OutFeatures, Heads: c.config.Heads,
			KVHeads: c.config.KVHeads, DimHead: c.config.DimHead, Causal: c.config.Causal})
		require.NoError(t, i.Err())
		l.UseFlashAttention(flash)
		if c.config.Keys > 0 {
			c.checkThree(t, l, l)
		} else {
			c.check(t, l, selfAttention{l})
		}
	},
	"transformer_layer": func(t *testing.T, c *cell, flash bool) {
		l := nn.NewTransformerLayer(nn.NewInit(1), c.transformer())
		l.UseFlashAttention(flash)
		c.check(t, l, l)
	},
	"transformer": func(t *testing.T, c *cell, flash bool) {
		l := nn.NewTransformer(nn.NewInit(1), c.transformer())
		l.UseFlashAttention(flash)
		c.check(t, l, l)
	},
	"language_model": func(t *testing.T, c *cell, flash bool) {
		l := nn.NewLanguageModel(nn.NewInit(1), nn.LanguageModelConfig{Vocabulary: c.config.Vocabulary, TransformerConfig: c.transformer()})
		l.UseFlashAttention(flash)
		c.fill(t, l.Params())
		s, cross := training(t), nn.CrossEntropy{Ignore: -100}
		y := l.Forward(s, nn.NewTokens(c.ints(t, "in.tokens"), c.config.Batch, c.config.T))
		loss := cross.Forward(s, y, c.ints(t, "in.targets"))
		l.Backward(s, cross.Backward(s))
		require.NoError(t, s.Err())
		near(t, "out", c.floats(t, "out"), y.Data, 5e-5)
		near(t, "loss", c.floats(t, "loss"), []float32{float32(loss)}, 1e-5)
		c.checkGrads(t, l.Params(), 5e-5)
	},
	"adamw": func(t *testing.T, c *cell, _ bool) { c.checkOptimizer(t) },
	"sgd":   func(t *testing.T, c *cell, _ bool) { c.checkOptimizer(t) },
}

func (c *cell) transformer() nn.TransformerConfig {
	return nn.TransformerConfig{Embedding: c.config.Features, Hidden: c.config.Hidden, Layers: c.config.Layers, Heads: c.config.Heads,
		DimHead: c.config.DimHead, Causal: c.config.Causal, TimeFirst: c.config.TimeFirst, SequenceLen: c.config.SequenceLen}
}

// bound returns the largest difference allowed.
func (c *cell) bound() float64 {
	if c.config.Layers > 0 {
		return 5e-5
	}
	return 1e-5
}

type parameters interface{ Params() []*nn.Param }

type layer interface {
	Forward(*nn.Step, nn.Tensor) nn.Tensor
	Backward(*nn.Step, nn.Tensor) nn.Tensor
}

// A selfAttention is an attention layer with q = k = v.
type selfAttention struct{ *nn.AttentionLayer }

func (l selfAttention) Forward(s *nn.Step, x nn.Tensor) nn.Tensor {
	return l.AttentionLayer.Forward(s, x, x, x)
}

func (l selfAttention) Backward(s *nn.Step, dy nn.Tensor) nn.Tensor {
	dq, dk, dv := l.AttentionLayer.Backward(s, dy)
	return s.Add(dq, dk, dv)
}

// check runs both passes of a layer with one input twice: gradients accumulate.
func (c *cell) check(t *testing.T, p parameters, l layer) {
	var params []*nn.Param
	if p != nil {
		params = p.Params()
	}
	c.fill(t, params)
	s := training(t)
	y := l.Forward(s, c.tensor(t, "in.x"))
	dx := l.Backward(s, c.tensor(t, "dy"))
	require.NoError(t, s.Err())
	near(t, "out", c.floats(t, "out"), y.Data, c.bound())
	near(t, "dx", c.floats(t, "din.x"), dx.Data, c.bound())
	c.checkGrads(t, params, c.bound())

	s.Begin(t.Context())
	y = l.Forward(s, c.tensor(t, "in.x"))
	require.NoError(t, s.Err())
	near(t, "out in inference", c.floats(t, "out"), y.Data, c.bound())
}

// checkThree is check for layers of q, k and v.
func (c *cell) checkThree(t *testing.T, p parameters, l interface {
	Forward(s *nn.Step, q, k, v nn.Tensor) nn.Tensor
	Backward(s *nn.Step, dy nn.Tensor) (dq, dk, dv nn.Tensor)
}) {
	var params []*nn.Param
	if p != nil {
		params = p.Params()
	}
	c.fill(t, params)
	s := training(t)
	y := l.Forward(s, c.tensor(t, "in.q"), c.tensor(t, "in.k"), c.tensor(t, "in.v"))
	dq, dk, dv := l.Backward(s, c.tensor(t, "dy"))
	require.NoError(t, s.Err())
	near(t, "out", c.floats(t, "out"), y.Data, c.bound())
	near(t, "dq", c.floats(t, "din.q"), dq.Data, c.bound())
	near(t, "dk", c.floats(t, "din.k"), dk.Data, c.bound())
	near(t, "dv", c.floats(t, "din.v"), dv.Data, c.bound())
	c.checkGrads(t, params, c.bound())
}

func (c *cell) checkGrads(t *testing.T, params []*nn.Param, bound float64) {
	for _, p := range params {
		near(t, "gradient of "+p.Name, c.floats(t, "grad."+p.Name), p.Grad, bound)
	}
}

// checkOptimizer updates a parameter by clipped gradients.
func (c *cell) checkOptimizer(t *testing.T) {
	data := c.floats(t, "param.weight")
	p := &nn.Param{Name: "weight", Shape: []int{len(data)}, Data: data}
	var update func()
	if c.config.Layer == "adamw" {
		o := nn.NewAdamW([]*nn.Param{p}, c.config.LR)
		o.WeightDecay, update = c.config.WeightDecay, o.Update
	} else {
		o := nn.NewSGD([]*nn.Param{p}, c.config.LR)
		o.WeightDecay, o.Momentum, update = c.config.WeightDecay, c.config.Momentum, o.Update
	}
	var norms []float32
	for k := range c.config.Steps {
		p.ZeroGrad()
		copy(p.Grad, c.floats(t, "in.grads")[k*len(data):])
		norms = append(norms, float32(nn.ClipGradients([]*nn.Param{p}, c.config.Clip)))
		update()
	}
	near(t, "norms", c.floats(t, "norms"), norms, 1e-6)
	near(t, "out", c.floats(t, "out"), p.Data, 1e-6)
}
