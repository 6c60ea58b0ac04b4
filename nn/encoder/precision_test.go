package encoder

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// bf16 has 8 significant bits, int8 less in small numbers: vectors turn by about that, more with
// more rounding. In f32, also by
// name, they stay the same.
func TestPrecision(t *testing.T) {
	v, _ := readTiny(t)
	d := opened(t)
	turned := map[string]float64{}
	for name, precision := range precisions {
		s := newTester(t, loadTiny(t, "gelu", precision), d)
		for _, c := range v.Cases {
			if c.Act != "gelu" || len(c.IDs) == 0 {
				continue
			}
			out := poisoned(32)
			require.NoError(t, s.vectors(context.Background(), out, batch{ids: c.IDs, types: c.Types, starts: []int32{0, int32(len(c.IDs))}}))
			distance := 0.0
			for i, x := range out {
				distance += math.Pow(float64(x)-float64(c.Vector[i]), 2)
			}
			turned[name] = max(turned[name], math.Sqrt(distance))
		}
	}
	t.Log(turned)
	require.Less(t, turned[""], 1e-5)
	require.Equal(t, turned[""], turned["f32"])
	for _, precision := range []string{"bf16-weights", "bf16"} {
		require.Greater(t, turned[precision], 0x1p-14)
		require.Less(t, turned[precision], 0x1p-6)
	}
	require.Greater(t, turned["int8"], 0x1p-12)
	require.Less(t, turned["int8"], 0x1p-4)
}

// With an input feature that is much larger than the others, calibration brings the vectors of int8
// nearer to the vectors of f32. The vectors do not depend on the number of workers.
func TestCalibration(t *testing.T) {
	f, err := safetensors.Parse(readWeights(t))
	require.NoError(t, err)
	found := false
	for i, x := range f.Tensors {
		if x.Name == "embeddings.LayerNorm.weight" {
			data, err := x.Float32s()
			require.NoError(t, err)
			data[5], found = 80, true
			f.Tensors[i] = safetensors.FromFloat32s(x.Name, x.Shape, data)
		}
	}
	require.True(t, found)
	files := merged(published, map[string]string{"model.safetensors": written(t, f)})
	vectors := func(o Options) [][]float32 {
		v, err := vectorsOf(t, files, o)
		require.NoError(t, err)
		return v
	}
	exact := vectors(Options{})
	apart := func(v [][]float32) (sum float64) {
		for i, v := range v {
			for j, x := range v {
				sum += math.Pow(float64(x)-float64(exact[i][j]), 2)
			}
		}
		return math.Sqrt(sum)
	}
	plain, calibrated := vectors(Options{Precision: "int8"}), vectors(Options{Precision: "int8", Calibration: someTexts[:2]})
	t.Log(apart(plain), apart(calibrated))
	require.Less(t, 2*apart(calibrated), apart(plain))
	require.Equal(t, calibrated, vectors(Options{Precision: "int8", Calibration: someTexts[:2], Workers: 3}))
	for precision, text := range map[string]string{"": "1 texts", "bf16": "1 texts"} {
		_, err := vectorsOf(t, files, Options{Precision: precision, Calibration: someTexts[:1]})
		require.ErrorContains(t, err, "Options.Calibration = "+text+": must be empty unless Options.Precision is int8")
	}
	_, err = vectorsOf(t, files, Options{Precision: "int8", Calibration: someTexts, MaxTokens: 9, Overflow: Refuse})
	require.ErrorContains(t, err, "must have at most 9")
}

// Vectors of int8 move towards the vectors of f32 with each product that stays in f32, and all such
// products give the vectors of f32. Other names are refused.
func TestProductsThatStayInFloat32(t *testing.T) {
	files := published
	vectors := func(o Options) [][]float32 {
		v, err := vectorsOf(t, files, o)
		require.NoError(t, err)
		return v
	}
	var names []string
	for k := range 2 {
		for _, name := range []string{"attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense"} {
			names = append(names, fmt.Sprintf("encoder.layer.%d.%s.weight", k, name))
		}
	}
	exact, rounded := vectors(Options{}), vectors(Options{Precision: "int8"})
	require.Equal(t, exact, vectors(Options{Precision: "int8", Float32: names}))
	require.Equal(t, exact, vectors(Options{Precision: "bf16", Float32: names, Workers: 3}))
	for _, name := range names {
		one := vectors(Options{Precision: "int8", Float32: []string{name}})
		require.NotEqual(t, rounded, one, name)
		require.NotEqual(t, exact, one, name)
	}
	for _, name := range []string{"", "encoder.layer.2.output.dense.weight", "encoder.layer.0.output.dense", "encoder.layer.0.attention.self.key.weight", "pooler.dense.weight"} {
		_, err := vectorsOf(t, files, Options{Precision: "int8", Float32: []string{names[0], name}})
		require.ErrorContains(t, err, fmt.Sprintf("Options.Float32 = %q: must be the name of a product's weight", name))
	}
	_, err := vectorsOf(t, files, Options{Float32: names})
	require.ErrorContains(t, err, "Options.Float32 = 8 names: must be empty if Options.Precision is f32")
}

// In each precision, a text's vector has the same bits alone as in a batch, if one kernel computes
// attention. If dispatch chooses other kernels for other batches, vectors agree up to the rounding of the
// precision.
func TestAloneAndInABatch(t *testing.T) {
	r, sequences := rand.New(rand.NewPCG(rand.Uint64(), 1)), [][]int32{}
	for _, n := range []int{3, 300, 16, 17, groupRows, 1, 64, 40, 128, groupRows + 1, 5, 31} {
		x := make([]int32, n)
		for i := range x {
			x[i] = r.Int32N(1000)
		}
		sequences = append(sequences, x)
	}
	all := opened(t)
	ran := 0
	for precision, apart := range map[string]float64{"f32": 1e-6, "bf16-weights": 1e-6, "bf16": 2e-3, "int8": 2e-2} {
		m := randomMiniLM(t, precisions[precision])
		run := func(d *dispatch.Dispatcher, apart float64) error {
			e := &Encoder{model: m, vectors: meanVector(384), most: 512, engine: nn.NewEngine(d)}
			defer e.Close()
			batch, err := e.EmbedTokens(t.Context(), sequences)
			if err != nil {
				return err
			}
			for i, x := range sequences {
				alone, err := e.EmbedTokens(t.Context(), sequences[i:i+1])
				require.NoError(t, err)
				requireNear(t, apart, batch[i], alone[0], "%s, %d tokens", precision, len(x))
			}
			return nil
		}
		require.NoError(t, run(all, apart))
		for _, k := range all.Kernels() {
			d, err := all.With(k.Name)
			if err != nil || k.Pass != flashkit.PassForward || !strings.HasPrefix(k.Name, "simd/") || testing.Short() && strings.HasSuffix(k.Name, "generic") {
				continue
			}
			if err := run(d, 0); err != nil {
				require.ErrorIs(t, err, errors.ErrUnsupported)
				continue
			}
			ran++
		}
	}
	if !testing.Short() { // a short run leaves out the only kernel of a processor without vectors
		require.Positive(t, ran)
	}
}

// With 8 bits, attention of more than groupRows tokens is in bf16 if the processor multiplies bf16.
func TestAttentionOfLongTextsInInt8(t *testing.T) {
	for precision, p := range precisions {
		for _, l := range randomMiniLM(t, p).body().layers {
			l := l.(*postNorm)
			short, long := nn.Float32, nn.Float32
			switch {
			case precision == "bf16":
				short, long = nn.BF16, nn.BF16
			case precision == "int8" && matmul.MultipliesBF16():
				long = nn.BF16
			}
			require.Equal(t, short, attentionOf(l.attention, l.long, &nn.Rows{T: groupRows}).Precision, precision)
			require.Equal(t, long, attentionOf(l.attention, l.long, &nn.Rows{T: groupRows + 1}).Precision, precision)
		}
	}
}
