package bert

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/safetensors"
)

// miniLM is the shape of all-MiniLM-L6-v2 with a smaller vocabulary.
var miniLM = Config{Vocab: 1000, Hidden: 384, Layers: 6, Heads: 12, Intermediate: 1536, Positions: 512, Types: 2, Eps: 1e-12, Activation: "gelu"}

// randomModel returns a model of the given shape.
func randomModel(t testing.TB, c Config) *Model {
	r := rand.New(rand.NewPCG(1, 1))
	f := &safetensors.File{}
	add := func(name string, shape ...int) {
		n := 1
		for _, k := range shape {
			n *= k
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * 0.05)
		}
		f.Tensors = append(f.Tensors, safetensors.FromFloat32s(name, shape, x))
	}
	h := c.Hidden
	norm := func(name string) { add(name+".weight", h); add(name+".bias", h) }
	linear := func(name string, out, in int) { add(name+".weight", out, in); add(name+".bias", out) }
	add("embeddings.word_embeddings.weight", c.Vocab, h)
	add("embeddings.position_embeddings.weight", c.Positions, h)
	add("embeddings.token_type_embeddings.weight", c.Types, h)
	norm("embeddings.LayerNorm")
	for i := range c.Layers {
		p := fmt.Sprintf("encoder.layer.%d.", i)
		for _, name := range []string{"query", "key", "value"} {
			linear(p+"attention.self."+name, h, h)
		}
		linear(p+"attention.output.dense", h, h)
		norm(p + "attention.output.LayerNorm")
		linear(p+"intermediate.dense", c.Intermediate, h)
		linear(p+"output.dense", h, c.Intermediate)
		norm(p + "output.LayerNorm")
	}
	m, err := Load(c, f)
	require.NoError(t, err)
	return m
}

// BenchmarkVectors reports sentences per second.
func BenchmarkVectors(b *testing.B) {
	for _, precision := range []string{"f32", "bf16-weights", "bf16"} {
		c := miniLM
		c.Precision = precision
		b.Run(precision, func(b *testing.B) { benchmarkVectors(b, randomModel(b, c)) })
	}
}

func benchmarkVectors(b *testing.B, m *Model) {
	d := opened(b)
	for _, c := range []struct {
		name       string
		sentences  int
		low, above int // tokens
	}{{"1x16", 1, 16, 17}, {"8x16", 8, 16, 17}, {"1x128", 1, 128, 129}, {"8x128", 8, 128, 129}, {"1x512", 1, 512, 513}, {"32xmixed", 32, 8, 129}} {
		b.Run(c.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			batch := Batch{Starts: []int32{0}}
			for range c.sentences {
				for range c.low + r.IntN(c.above-c.low) {
					batch.IDs = append(batch.IDs, r.Int32N(1000))
				}
				batch.Starts = append(batch.Starts, int32(len(batch.IDs)))
			}
			s, out := newStep(b, m, d), make([]float32, c.sentences*384)
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Vectors(context.Background(), out, batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.sentences*b.N)/b.Elapsed().Seconds(), "sentences/s")
		})
	}
}
