package nn_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/flashkit-go/flashkit/nn"
)

// BenchmarkTrain times a training step of a language model of 3.2 million parameters on 2048
// tokens.
func BenchmarkTrain(b *testing.B) {
	for _, length := range []int{256, 1024} {
		for _, flash := range []bool{true, false} {
			b.Run(fmt.Sprintf("T=%d/flash=%v", length, flash), func(b *testing.B) {
				m := newModel(b, nn.LanguageModelConfig{Vocabulary: 65, TransformerConfig: nn.TransformerConfig{
					Embedding: 256, Hidden: 1024, Layers: 4, Heads: 4, DimHead: 64, Causal: true, SequenceLen: length}})
				m.UseFlashAttention(flash)
				tokens := someTokens(rand.New(rand.NewPCG(1, 2)), 2048/length, length, 65)
				params, s, cross, step := m.Params(), engine.NewStep(), nn.CrossEntropy{}, uint64(0)
				o := nn.NewAdamW(params, 1e-3)
				b.ReportAllocs()
				for b.Loop() {
					step++
					s.BeginTraining(b.Context(), 1, step)
					nn.ZeroGrads(params)
					cross.Forward(s, m.Forward(s, tokens), tokens.IDs)
					m.Backward(s, cross.Backward(s))
					if err := s.Err(); err != nil {
						b.Fatal(err)
					}
					nn.ClipGradients(params, 1)
					o.Update()
				}
				b.ReportMetric(2048*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
				b.ReportMetric(float64(s.Memory())/(1<<20), "MiB/step")
			})
		}
	}
}
