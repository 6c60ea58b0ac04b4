package library

import (
	"context"
	"log"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn"
)

// trainModel is the sample of docs/layers.md.
func trainModel(ctx context.Context, batch func(number uint64) (nn.Tokens, []int32)) error {
	d, err := dispatch.Default(ctx) // attention
	if err != nil {
		return err
	}
	defer d.Close()
	e := nn.NewEngine(d) // and products; once per program
	defer e.Close()

	init := nn.NewInit(1) // a seed
	model := nn.NewLanguageModel(init, nn.LanguageModelConfig{Vocabulary: 256, TransformerConfig: nn.TransformerConfig{
		Embedding: 256, Hidden: 1024, Layers: 4, Heads: 4, DimHead: 64, Dropout: 0.1, Causal: true, SequenceLen: 256}})
	if err := init.Err(); err != nil {
		return err
	}

	params, cross := model.Params(), nn.CrossEntropy{Ignore: -100}
	optimizer := nn.NewAdamW(params, 3e-4)
	s := e.NewStep() // once per goroutine
	for number := range uint64(1000) {
		tokens, targets := batch(number) // nn.NewTokens(ids, 16, 256), and the ids that follow
		s.BeginTraining(ctx, 1, number)
		nn.ZeroGrads(params)
		loss := cross.Forward(s, model.Forward(s, tokens), targets)
		model.Backward(s, cross.Backward(s))
		if err := s.Err(); err != nil {
			return err
		}
		log.Printf("%d: loss %.3f", number, loss)
		nn.ClipGradients(params, 1)
		optimizer.Update()
	}
	return nil
}

// A step takes seconds without vectors: the context ends before the first one.
func TestTrain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	begun := 0
	require.ErrorIs(t, trainModel(ctx, func(uint64) (nn.Tokens, []int32) {
		begun++
		cancel()
		return nn.NewTokens(make([]int32, 16*256), 16, 256), make([]int32, 16*256)
	}), context.Canceled)
	require.Equal(t, 1, begun)
}
