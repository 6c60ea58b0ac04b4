package nn_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/nn"
)

// tiny is a small language model with all parts of a large one.
var tiny = nn.LanguageModelConfig{Vocabulary: 11, TransformerConfig: nn.TransformerConfig{
	Embedding: 16, Hidden: 24, Layers: 2, Heads: 2, DimHead: 8, Causal: true, SequenceLen: 12}}

func newModel(t testing.TB, c nn.LanguageModelConfig) *nn.LanguageModel {
	i := nn.NewInit(3)
	m := nn.NewLanguageModel(i, c)
	require.NoError(t, i.Err())
	return m
}

func someTokens(r *rand.Rand, batch, t, vocabulary int) nn.Tokens {
	ids := make([]int32, batch*t)
	for i := range ids {
		ids[i] = r.Int32N(int32(vocabulary))
	}
	return nn.NewTokens(ids, batch, t)
}

// A warm pass does not allocate.
func TestAllocations(t *testing.T) {
	if allocates {
		t.Skip("what it is built on allocates under the race detector and with the tag purego")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, flash := range []bool{true, false} {
		c := tiny
		c.Dropout = .1
		m := newModel(t, c)
		m.UseFlashAttention(flash)
		tokens, targets := someTokens(r, 3, 12, 11), someTokens(r, 3, 12, 11).IDs
		params := m.Params()
		s, cross, o, ctx := engine.NewStep(), nn.CrossEntropy{Ignore: -100}, nn.NewAdamW(params, 1e-3), t.Context()
		step := uint64(0)
		train := func() {
			step++
			s.BeginTraining(ctx, 1, step)
			nn.ZeroGrads(params)
			cross.Forward(s, m.Forward(s, tokens), targets)
			m.Backward(s, cross.Backward(s))
			nn.ClipGradients(params, 1)
			o.Update()
		}
		for range 3 {
			train()
		}
		require.Zero(t, allocs.PerRun(20, train), "training, flash %v", flash)
		infer := func() {
			s.Begin(ctx)
			m.Forward(s, tokens)
		}
		infer()
		require.Zero(t, allocs.PerRun(20, infer), "inference, flash %v", flash)

		caches, err := m.NewCaches(3)
		require.NoError(t, err)
		next := nn.NewTokens(tokens.IDs[:3], 3, 1)
		decode := func() {
			if caches[0].Lens()[0] == 12 {
				for _, c := range caches {
					c.Reset()
				}
			}
			s.Begin(ctx)
			m.Decode(s, next, caches)
		}
		decode()
		require.Zero(t, allocs.PerRun(20, decode), "decoding, flash %v", flash)
		require.NoError(t, s.Err())
	}
}

// Any number of goroutines may run a model, each with its own Step, and get the same bits as one
// alone. The first ones pack the weights.
func TestConcurrentInference(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	m := newModel(t, tiny)
	tokens := someTokens(r, 2, 12, 11)
	var want []float32
	for k, workers := range []int{1, 0, 2} {
		s := engine.NewStep()
		s.Workers = workers
		s.Begin(t.Context())
		got := append([]float32(nil), newModel(t, tiny).Forward(s, tokens).Data...)
		require.NoError(t, s.Err())
		if k == 0 {
			want = got
		}
		require.Equal(t, want, got, "workers %d", workers)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := engine.NewStep()
			for range 5 {
				s.Begin(context.Background())
				got := m.Forward(s, tokens)
				if s.Err() != nil || !equal(want, got.Data) {
					t.Errorf("differs, or failed: %v", s.Err())
				}
			}
		})
	}
	wg.Wait()
}

func equal(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Two trainings of the same seed have the same bits; inference frees memory.
func TestTrainingRepeats(t *testing.T) {
	losses := func(workers int) (list []float64) {
		r := rand.New(rand.NewPCG(5, 6))
		c := tiny
		c.Dropout = .2
		m := newModel(t, c)
		s, cross, o := engine.NewStep(), nn.CrossEntropy{Ignore: -100}, nn.NewAdamW(m.Params(), 1e-2)
		s.Workers = workers
		tokens := someTokens(r, 4, 12, 11)
		for step := range uint64(60) {
			s.BeginTraining(t.Context(), 9, step)
			nn.ZeroGrads(m.Params())
			list = append(list, cross.Forward(s, m.Forward(s, tokens), tokens.IDs))
			m.Backward(s, cross.Backward(s))
			require.NoError(t, s.Err())
			o.Update()
		}
		return list
	}
	first := losses(1)
	require.Equal(t, first, losses(2))
	require.Less(t, first[59], first[0]/4, "it learns to repeat its input: %v", first)
}

// Plain attention's memory grows with the square of T, flash attention's does not.
func TestMemory(t *testing.T) {
	bytes := func(length int, flash, train bool) int {
		c := tiny
		c.SequenceLen, c.Layers = length, 3
		m := newModel(t, c)
		m.UseFlashAttention(flash)
		s, cross := engine.NewStep(), nn.CrossEntropy{}
		tokens := someTokens(rand.New(rand.NewPCG(7, 8)), 1, length, 11)
		if train {
			s.BeginTraining(t.Context(), 0, 0)
			cross.Forward(s, m.Forward(s, tokens), tokens.IDs)
			m.Backward(s, cross.Backward(s))
		} else {
			s.Begin(t.Context())
			m.Forward(s, tokens)
		}
		require.NoError(t, s.Err())
		return s.Memory()
	}
	require.Less(t, bytes(1024, true, true), 5*bytes(512, true, true)/2)
	require.Greater(t, bytes(512, false, true), 3*2*4*512*512, "layers, heads, bytes")
	require.Less(t, bytes(512, true, false), bytes(512, true, true)/3)
}

func TestMisuse(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	l, x := nn.NewLinear(nn.NewInit(1), 4, 4, true), random(r, 1, 3, 4)
	var none context.Context
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		do   func(s *nn.Step)
		want string
	}{
		"backward without forward": {func(s *nn.Step) { l.Backward(s, x) }, "without a Forward"},
		"backward in inference": {func(s *nn.Step) {
			s.Begin(t.Context())
			l.Backward(s, l.Forward(s, x))
		}, "without a Forward"},
		"wrong order": {func(s *nn.Step) {
			n := nn.NewLayerNorm(nn.NewInit(1), 4)
			l.Forward(s, n.Forward(s, x))
			n.Backward(s, x)
		}, "reverse order"},
		"forward amid backward": {func(s *nn.Step) {
			l.Forward(s, l.Forward(s, x))
			l.Backward(s, x)
			l.Forward(s, x)
		}, "Forward after Backward"},
		"canceled": {func(s *nn.Step) {
			s.BeginTraining(canceled, 0, 0)
			l.Forward(s, x)
		}, "context canceled"},
		"nil context": {func(s *nn.Step) { s.Begin(none); l.Forward(s, x) }, "context of the Step is nil"},
		"workers":     {func(s *nn.Step) { s.Workers = -1; s.Begin(t.Context()) }, "Step.Workers = -1"},
	} {
		s := training(t)
		c.do(s)
		require.ErrorContains(t, s.Err(), c.want, name)
		require.Empty(t, l.Forward(s, x).Data, "%s: the error sticks", name)
		require.ErrorContains(t, s.Err(), c.want, name)
		s.Workers = 0
		s.Begin(t.Context())
		require.NoError(t, s.Err(), "%s: until the next Begin", name)
	}
	for name, s := range map[string]*nn.Step{"zero": {}, "no dispatcher": nn.NewEngine(nil).NewStep(), "not begun": engine.NewStep()} {
		if name != "not begun" {
			s.Begin(t.Context())
		}
		l.Forward(s, x)
		require.Error(t, s.Err(), name)
	}
}

// Forward passes after a complete backward pass are another sample of the step.
func TestTwoSamples(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	m := newModel(t, tiny)
	a, b := someTokens(r, 2, 9, 11), someTokens(r, 1, 12, 11)
	sum := func(samples ...nn.Tokens) []float32 {
		nn.ZeroGrads(m.Params())
		s, cross := training(t), nn.CrossEntropy{}
		for _, x := range samples {
			cross.Forward(s, m.Forward(s, x), x.IDs)
			m.Backward(s, cross.Backward(s))
		}
		require.NoError(t, s.Err())
		var all []float32
		for _, p := range m.Params() {
			all = append(all, p.Grad...)
		}
		return all
	}
	one, two, both := sum(a), sum(b), sum(a, b)
	for i := range one {
		one[i] += two[i]
	}
	near(t, "gradients", one, both, 1e-6)
}
