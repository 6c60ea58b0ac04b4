package encoder

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/cublas"
	"github.com/flashkit-go/flashkit/internal/gputest"
	"github.com/flashkit-go/flashkit/nn"
)

// eachGPU runs f with a machine in plain Go and with the GPU, if there is one with cuBLAS.
func eachGPU(t *testing.T, f func(t *testing.T, open func() *gpu)) {
	t.Run("host", func(t *testing.T) {
		d := opened(t)
		f(t, func() *gpu {
			m := newHost(d)
			t.Cleanup(func() {
				require.Empty(t, m.live)
				require.False(t, m.open)
			})
			return newGPU(m, "host")
		})
	})
	t.Run("cuda", func(t *testing.T) {
		b, err := cuda.Open()
		if errors.Is(err, flashkit.ErrUnavailable) {
			t.Skip(err)
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		g, err := openGPU(b)
		if errors.Is(err, cublas.ErrMissing) {
			t.Skip(err)
		}
		require.NoError(t, err)
		require.NoError(t, g.free())
		f(t, func() *gpu {
			g, err := openGPU(b)
			require.NoError(t, err)
			return g
		})
	})
}

// onGPU returns a tester whose model's layers run on a GPU.
func onGPU(t *testing.T, config string, weights []byte, g *gpu) *tester {
	t.Cleanup(func() { require.NoError(t, g.free()) })
	m, err := loadOn(config, weights, g)
	require.NoError(t, err)
	s := newTester(t, m, opened(t))
	s.gpu = g
	return s
}

func loadOn(config string, weights []byte, g *gpu) (family, error) {
	c, err := parseConfig("config.json", []byte(config))
	if err != nil {
		return nil, err
	}
	k, err := kindOf(c)
	if err != nil {
		return nil, err
	}
	c.checkCommon()
	f, err := bytesWeights(weights, k.prefix)
	if err != nil {
		return nil, err
	}
	c.elements, c.gpu = f.elements(), g
	return k.load(c, nn.FromTensors(f.require), nn.Float32)
}

// Hidden states equal transformers', for packed sequences of many lengths and of one length.
func TestRotaryFamiliesOnGPU(t *testing.T) {
	eachGPU(t, func(t *testing.T, open func() *gpu) {
		for _, x := range rotaryCases(t) {
			t.Run(x.name, func(t *testing.T) {
				s := onGPU(t, x.config, x.weights, open())
				width := s.model.shape().hidden
				out := poisoned(len(x.hidden))
				for range 2 {
					require.NoError(t, s.run(t.Context(), out, x.batch, hidden(width), 1))
					requireNear(t, 1e-5, x.hidden, out, "hidden states")
				}
				from, to := x.batch.starts[1], x.batch.starts[2]
				n := to - from
				two := batch{ids: append(append([]int32(nil), x.batch.ids[from:to]...), x.batch.ids[from:to]...), starts: []int32{0, n, 2 * n}}
				out = out[:2*int(n)*width]
				require.NoError(t, s.run(t.Context(), out, two, hidden(width), 1))
				want := x.hidden[int(from)*width:][:int(n)*width]
				requireNear(t, 1e-5, append(append([]float32(nil), want...), want...), out, "sequences of one length")
			})
		}
	})
}

// Vectors of a BERT with each activation equal transformers'.
func TestTinyOnGPU(t *testing.T) {
	v, weights := readTiny(t)
	eachGPU(t, func(t *testing.T, open func() *gpu) {
		for _, c := range v.Cases {
			s := onGPU(t, edit(string(v.Config), `"gelu"`, `"`+c.Act+`"`), weights, open())
			out := poisoned(len(c.Hidden))
			b := batch{ids: c.IDs, types: c.Types, starts: []int32{0, int32(len(c.IDs))}}
			require.NoError(t, s.hidden(t.Context(), out, b))
			requireNear(t, 1e-5, c.Hidden, out, "hidden states with %s", c.Act)
		}
	})
}

// A failure of any call is the error of Embed, and frees everything.
func TestGPUFailures(t *testing.T) {
	x := rotaryCases(t)[0]
	m := newHost(opened(t))
	s := onGPU(t, x.config, x.weights, newGPU(m, "the machine"))
	out := poisoned(len(x.hidden))
	run := func() error { return s.run(t.Context(), out, x.batch, hidden(s.model.shape().hidden), 1) }
	require.NoError(t, run())
	broken := errors.New("broken")
	for name := range m.ran {
		if name == "alloc" || name == "uploadInts" {
			continue // may not be called again
		}
		m.fail[name] = broken
		err := run()
		require.ErrorIs(t, err, broken, name)
		require.ErrorContains(t, err, "layers on the machine: ")
		delete(m.fail, name)
		require.NoError(t, run())
	}
	requireNear(t, 1e-5, x.hidden, out, "hidden states")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.run(ctx, out, x.batch, hidden(s.model.shape().hidden), 1), context.Canceled)

	for _, name := range []string{"alloc", "upload"} {
		m := newHost(nil)
		m.fail[name] = broken
		g := newGPU(m, "the machine")
		_, err := loadOn(x.config, x.weights, g)
		require.ErrorIs(t, err, broken)
		require.NoError(t, g.free())
	}
}

// The activations of package cuda have nn's numbers.
func TestActivationsOfGPU(t *testing.T) {
	require.Equal(t, []cuda.Activation{cuda.Identity, cuda.ReLU, cuda.GELU, cuda.GELUTanh, cuda.SiLU},
		[]cuda.Activation{cuda.Activation(nn.None), cuda.Activation(nn.ReLU), cuda.Activation(nn.GELU), cuda.Activation(nn.GELUTanh), cuda.Activation(nn.SiLU)})
}

// Without cuBLAS, the CPU runs the layers, and Explain gives the reason. Other precisions are refused.
func TestWithoutCuBLAS(t *testing.T) {
	t.Setenv(cublas.Variable, "/nowhere/libcublas.so.13")
	b, err := cuda.OpenWith(gputest.New().Driver(), 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	x := rotaryCases(t)[0]
	dir := folder(t, map[string]string{"config.json": x.config, "model.safetensors": string(x.weights), "tokenizer.json": numbers(40)})
	e, err := OpenWith(t.Context(), dir, Options{GPU: b})
	require.NoError(t, err)
	defer e.Close()
	require.Regexp(t, `(?s)^products and norms of \d+ layers: CPU, not a stub: no cuBLAS: .*`, e.Explain())
	plain, err := Open(t.Context(), dir)
	require.NoError(t, err)
	defer plain.Close()
	require.Regexp(t, `^products and norms of \d+ layers: CPU\nattention: Options.Dispatcher\nembeddings, pooling and heads: CPU$`, plain.Explain())
	want, err := plain.Embed(t.Context(), []string{"1 2 3"})
	require.NoError(t, err)
	got, err := e.Embed(t.Context(), []string{"1 2 3"})
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = OpenWith(t.Context(), dir, Options{GPU: b, Precision: "bf16"})
	require.ErrorContains(t, err, "Options.Precision = bf16: must be f32 with Options.GPU")
}

// The CPU runs the layers of a family with a bias of the scores.
func TestFamilyOffGPU(t *testing.T) {
	m := newHost(nil)
	e := &Encoder{gpu: newGPU(m, "the machine")}
	c, err := parseConfig("config.json", []byte(`{"model_type": "mpnet"}`))
	require.NoError(t, err)
	require.Nil(t, e.gpuFor(c))
	require.Nil(t, e.gpu)
	require.False(t, m.open)
	require.Equal(t, "a GPU does not run the layers of model_type mpnet", e.why)
}
