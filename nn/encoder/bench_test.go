package encoder

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// miniLM is the shape of all-MiniLM-L6-v2 with a smaller vocabulary.
const miniLM = `{"model_type": "bert", "vocab_size": 1000, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}`

// randomMiniLM returns a model with random weights.
func randomMiniLM(t testing.TB, p nn.Precision) family {
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
	norm := func(name string) { add(name+".weight", 384); add(name+".bias", 384) }
	linear := func(name string, out, in int) { add(name+".weight", out, in); add(name+".bias", out) }
	add("embeddings.word_embeddings.weight", 1000, 384)
	add("embeddings.position_embeddings.weight", 512, 384)
	add("embeddings.token_type_embeddings.weight", 2, 384)
	norm("embeddings.LayerNorm")
	for i := range 6 {
		p := fmt.Sprintf("encoder.layer.%d.", i)
		for _, name := range []string{bertNames.query, bertNames.key, bertNames.value, bertNames.out} {
			linear(p+name, 384, 384)
		}
		norm(p + bertNames.norm)
		linear(p+bertNames.up, 1536, 384)
		linear(p+bertNames.down, 384, 1536)
		norm(p + bertNames.normDown)
	}
	c, err := parseConfig("config.json", []byte(miniLM))
	require.NoError(t, err)
	c.Ignore("model_type")
	c.elements = math.MaxInt
	m, err := loadBERT(c, nn.FromFile(f), p)
	require.NoError(t, err)
	return m
}

// BenchmarkEmbed reports sequences per second, from token ids.
func BenchmarkEmbed(b *testing.B) {
	for _, precision := range []string{"f32", "bf16-weights", "bf16", "int8"} {
		m := randomMiniLM(b, precisions[precision])
		b.Run(precision, func(b *testing.B) { benchmarkEmbed(b, m) })
	}
}

func benchmarkEmbed(b *testing.B, m family) {
	e := &Encoder{model: m, vectors: meanVector(384), most: 512, engine: nn.NewEngine(opened(b))}
	defer e.Close()
	for _, c := range []struct {
		name       string
		sentences  int
		low, above int // tokens
	}{{"1x16", 1, 16, 17}, {"8x16", 8, 16, 17}, {"1x128", 1, 128, 129}, {"8x128", 8, 128, 129}, {"32x16", 32, 16, 17}, {"1x512", 1, 512, 513}, {"32xmixed", 32, 8, 129}} {
		b.Run(c.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			sequences := make([][]int32, c.sentences)
			for i := range sequences {
				for range c.low + r.IntN(c.above-c.low) {
					sequences[i] = append(sequences[i], r.Int32N(1000))
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.EmbedTokens(context.Background(), sequences); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.sentences*b.N)/b.Elapsed().Seconds(), "sentences/s")
		})
	}
}
