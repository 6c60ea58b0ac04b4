package nn_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

func TestSaveLoad(t *testing.T) {
	m := newModel(t, tiny)
	var file, again bytes.Buffer
	require.NoError(t, nn.Save(&file, m.Params(), map[string]string{"step": "7"}))
	require.NoError(t, nn.Save(&again, m.Params(), map[string]string{"step": "7"}))
	require.Equal(t, file.Bytes(), again.Bytes())

	other := nn.NewLanguageModel(nn.Blank(), tiny)
	tokens := someTokens(rand.New(rand.NewPCG(1, 2)), 2, 7, 11)
	s := inference(t)
	want := append([]float32(nil), m.Forward(s, tokens).Data...)
	require.NotEqual(t, want, append([]float32(nil), other.Forward(s, tokens).Data...)) // and packs its weights
	metadata, err := nn.Load(file.Bytes(), other.Params())
	require.NoError(t, err)
	require.Equal(t, map[string]string{"step": "7"}, metadata)
	require.Equal(t, want, other.Forward(s, tokens).Data)
	require.NoError(t, s.Err())
}

// The error names every faulty tensor, and nothing is loaded.
func TestLoadErrors(t *testing.T) {
	var file bytes.Buffer
	require.NoError(t, nn.Save(&file, newModel(t, tiny).Params(), nil))
	m := nn.NewLanguageModel(nn.Blank(), tiny)
	var before bytes.Buffer
	require.NoError(t, nn.Save(&before, m.Params(), nil))

	f, err := safetensors.Parse(file.Bytes())
	require.NoError(t, err)
	f.Tensors[1].Name = "stranger"
	f.Tensors[2].Shape = []int{4, 4}
	f.Tensors[2].Data = f.Tensors[2].Data[:64]
	f.Tensors[3].DType, f.Tensors[3].Data = "BF16", f.Tensors[3].Data[:len(f.Tensors[3].Data)/2]
	var broken bytes.Buffer
	require.NoError(t, f.Write(&broken))
	_, err = nn.Load(broken.Bytes(), m.Params())
	require.ErrorContains(t, err, `"positions.weight" is missing`)
	require.ErrorContains(t, err, `"stranger" belongs to no parameter`)
	require.ErrorContains(t, err, `tensor layers.0.attention.norm_q.weight = [4 4]: must be of shape [16]`)
	require.ErrorContains(t, err, `tensor layers.0.attention.norm_q.bias = BF16: must be F32`)
	require.Len(t, strings.Split(err.Error(), "\n"), 4)
	_, err = nn.Load(file.Bytes()[:100], m.Params())
	require.ErrorContains(t, err, "safetensors: ")
	_, err = nn.Load(file.Bytes(), append(m.Params(), m.Params()[0]))
	require.ErrorContains(t, err, "twice among the parameters")
	var after bytes.Buffer
	require.NoError(t, nn.Save(&after, m.Params(), nil))
	require.Equal(t, before.Bytes(), after.Bytes())
}

// FromFile and Load give the same model, packed beforehand or by the first pass, at any alignment.
func TestFromFile(t *testing.T) {
	var file bytes.Buffer
	m := newModel(t, tiny)
	require.NoError(t, nn.Save(&file, m.Params(), nil))
	s, tokens := inference(t), someTokens(rand.New(rand.NewPCG(1, 2)), 2, 7, 11)
	want := append([]float32(nil), m.Forward(s, tokens).Data...)
	trained := append([]float32(nil), m.Forward(training(t), tokens).Data...) // training may run another kernel
	for shift := range 4 {
		f, err := safetensors.Parse(append(make([]byte, shift), file.Bytes()...)[shift:])
		require.NoError(t, err)
		i := nn.FromFile(f)
		m := nn.NewLanguageModel(i, tiny)
		require.NoError(t, i.Err())
		require.Equal(t, want, m.Forward(s, tokens).Data)
		m = nn.NewLanguageModel(i, tiny)
		l := m.Transformer.Layers[0]
		require.NoError(t, nn.Pack(l.Linear1, l.Linear2, m.Head))
		l.Linear1.Weight.Data, m.Head.Weight.Data = nil, nil
		require.Equal(t, want, m.Forward(s, tokens).Data)
		require.NoError(t, s.Err())

		s := training(t)
		require.Equal(t, trained, m.Forward(s, tokens).Data)
		m.Backward(s, nn.NewTensor(make([]float32, 2*7*11), 2, 7, 11))
		require.ErrorContains(t, s.Err(), "head.weight.Data.len = 0")
		m.Head.Weight.Changed()
		s = inference(t)
		m.Forward(s, tokens)
		require.ErrorContains(t, s.Err(), "head.weight.Data.len = 0")
		require.ErrorContains(t, nn.Pack(l.Linear2, m.Head), "head.weight.Data.len = 0")
	}
	for _, change := range []func(f *safetensors.File){
		func(f *safetensors.File) { f.Tensors[0].Name = "other" },
		func(f *safetensors.File) { f.Tensors[0].DType = "I32" },
		func(f *safetensors.File) { f.Tensors[0].Shape = []int{1, 1} },
		func(f *safetensors.File) { f.Tensors[0].Data = f.Tensors[0].Data[4:] },
	} {
		f, err := safetensors.Parse(file.Bytes())
		require.NoError(t, err)
		name := f.Tensors[0].Name
		change(f)
		i := nn.FromFile(f)
		nn.NewLanguageModel(i, tiny)
		require.ErrorContains(t, i.Err(), name)
	}
}

// F16 and BF16 tensors become float32.
func TestFromFileOfHalves(t *testing.T) {
	bits := []byte{0x00, 0x3c, 0x01, 0x00, 0x00, 0xfc, 0x9a, 0x3f} // 1, 2^-24, -Inf, 1.9004 as F16
	for dtype, want := range map[string][]float32{
		"F16":  {1, 0x1p-24, float32(math.Inf(-1)), 0x1.e68p+0},
		"BF16": {0x1p-7, 0x1p-133, -0x1p+121, 0x1.34p+0},
	} {
		f := &safetensors.File{Tensors: []safetensors.Tensor{{Name: "weight", DType: dtype, Shape: []int{2, 2}, Data: bits}}}
		i := nn.FromFile(f)
		require.Equal(t, want, nn.NewLinear(i, 2, 2, false).Weight.Data)
		require.NoError(t, i.Err())
		f.Tensors[0].Data = bits[:6]
		nn.NewLinear(i, 2, 2, false)
		require.ErrorContains(t, i.Err(), "weight")
	}
}

// Parameters have the names of PyTorch's modules in tools/nn_vectors.py, in a fixed order. Initial
// values depend only on the seed and the name.
func TestParams(t *testing.T) {
	var names []string
	m := newModel(t, tiny)
	for _, p := range m.Params() {
		names = append(names, p.Name)
		require.Nil(t, p.Grad, "a model for inference has no gradients")
	}
	require.Equal(t, []string{"embedding.weight", "positions.weight",
		"layers.0.attention.norm_q.weight", "layers.0.attention.norm_q.bias", "layers.0.attention.norm_k.weight", "layers.0.attention.norm_k.bias",
		"layers.0.attention.norm_v.weight", "layers.0.attention.norm_v.bias",
		"layers.0.attention.q.weight", "layers.0.attention.k.weight", "layers.0.attention.v.weight", "layers.0.attention.out.weight",
		"layers.0.norm.weight", "layers.0.norm.bias",
		"layers.0.linear1.weight", "layers.0.linear1.bias", "layers.0.linear2.weight", "layers.0.linear2.bias"}, names[:18])
	require.Len(t, names, 2+2*16+2)
	require.Equal(t, 11*16+12*16+2*(6*16+4*16*16+2*16+24*16+24+16*24+16)+11*16+11, nn.Count(m.Params()))

	l := nn.NewLinear(nn.NewInit(3).In("layers").In("0").In("attention").In("q"), 16, 16, false)
	require.Equal(t, m.Params()[8].Data, l.Weight.Data)
	require.NotEqual(t, l.Weight.Data, nn.NewLinear(nn.NewInit(4).In("layers").In("0").In("attention").In("q"), 16, 16, false).Weight.Data)

	i := nn.NewInit(9)
	sum, squares := 0.0, 0.0
	for _, x := range nn.NewLinear(i, 100, 1000, false).Weight.Data {
		if !(x >= -.1 && x <= .1) {
			require.Failf(t, "bound", "%v is beyond 1/sqrt(100)", x)
		}
		sum, squares = sum+float64(x), squares+float64(x)*float64(x)
	}
	require.InDelta(t, 0, sum/1e5, 1e-3)
	require.InDelta(t, .01/3, squares/1e5, 5e-5)
	squares = 0
	for _, x := range nn.NewEmbedding(i, 100, 1000).Weight.Data {
		squares += float64(x) * float64(x)
	}
	require.InDelta(t, 1, squares/1e5, .03)
}
