package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/flashkit-go/flashkit/nn"
)

type trainer struct {
	options
	text      *corpus
	model     *nn.LanguageModel
	params    []*nn.Param
	optimizer *nn.AdamW
	step      *nn.Step
	tokens    nn.Tokens
	targets   []int32
	history   []float32 // loss of each step
}

// newTrainer returns a trainer, resumed from its checkpoint if there is one.
func newTrainer(e *nn.Engine, o options) (*trainer, error) {
	text, err := readCorpus(o.text)
	if err != nil {
		return nil, err
	}
	init := nn.NewInit(o.seed)
	model := nn.NewLanguageModel(init, nn.LanguageModelConfig{Vocabulary: len(text.symbols), TransformerConfig: o.model})
	if err := init.Err(); err != nil {
		return nil, err
	}
	model.UseFlashAttention(o.flash)
	t := &trainer{options: o, text: text, model: model, params: model.Params(), step: e.NewStep()}
	t.step.Workers = o.workers
	t.optimizer = nn.NewAdamW(t.params, o.lr)
	n := o.batch * o.model.SequenceLen
	t.tokens, t.targets = nn.NewTokens(make([]int32, n), o.batch, o.model.SequenceLen), make([]int32, n)
	return t, t.load()
}

// train runs the remaining steps. If ctx ends it saves a checkpoint: parameters change only after a
// whole step.
func (t *trainer) train(ctx context.Context, w io.Writer) error {
	start, since := time.Now(), t.optimizer.Steps
	first := since
	for t.optimizer.Steps < t.steps {
		loss, err := t.once(ctx)
		if err != nil {
			return errors.Join(err, t.save())
		}
		n := t.optimizer.Steps
		if n%t.every == 0 || n == t.steps {
			t.progress(w, loss, (n-since)*t.tokens.Count(), time.Since(start))
			start, since = time.Now(), n
		}
		if n%t.options.save == 0 {
			if err := t.save(); err != nil {
				return err
			}
		}
	}
	if t.optimizer.Steps > first {
		fmt.Fprintf(w, "memory of a step: %.1f MiB besides the parameters\n", float64(t.step.Memory())/(1<<20))
	}
	return errors.Join(t.save(), t.draw())
}

func (t *trainer) once(ctx context.Context) (loss float64, err error) {
	number := uint64(t.optimizer.Steps)
	if err := t.text.batch(t.tokens, t.targets, t.seed, number); err != nil {
		return 0, err
	}
	s, cross := t.step, nn.CrossEntropy{Ignore: -100}
	s.BeginTraining(ctx, t.seed, number)
	nn.ZeroGrads(t.params)
	loss = cross.Forward(s, t.model.Forward(s, t.tokens), t.targets)
	t.model.Backward(s, cross.Backward(s))
	if err := s.Err(); err != nil {
		return 0, err
	}
	nn.ClipGradients(t.params, 1)
	t.optimizer.Update()
	t.history = append(t.history, float32(loss))
	return loss, nil
}

// sample generates text after an empty line. It reads each byte once, with keys and values in
// caches. When they are full, it restarts with the last half of a sequence.
func (t *trainer) sample(ctx context.Context, e *nn.Engine, n int) (string, error) {
	caches, err := t.model.NewCaches(1)
	if err != nil {
		return "", err
	}
	s := e.NewStep()
	s.Workers = t.workers
	ids, from := []int32{t.text.token('\n')}, 0
	for k := range n {
		if len(ids)-from > t.options.model.SequenceLen {
			from = len(ids) - max(1, t.options.model.SequenceLen/2)
			for _, c := range caches {
				c.Reset()
			}
		}
		next := ids[from+int(caches[0].Lens()[0]):]
		s.Begin(ctx)
		logits := t.model.Decode(s, nn.NewTokens(next, 1, len(next)), caches)
		if err := s.Err(); err != nil {
			return "", err
		}
		at := float64(mix(t.seed^uint64(k)<<20)>>11) / (1 << 53)
		ids = append(ids, t.choose(logits.Row(len(next)-1), at))
	}
	text := make([]byte, n)
	for i, id := range ids[1:] {
		text[i] = t.text.symbols[id]
	}
	return string(text), nil
}

// choose returns the token at which the cumulative probability exceeds at, in [0, 1).
func (t *trainer) choose(logits []float32, at float64) int32 {
	m, sum := math.Inf(-1), 0.0
	for _, x := range logits {
		m = max(m, float64(x))
	}
	weight := func(x float32) float64 { return math.Exp((float64(x) - m) / t.temperature) }
	for _, x := range logits {
		sum += weight(x)
	}
	for id, x := range logits {
		if at -= weight(x) / sum; at < 0 {
			return int32(id)
		}
	}
	return int32(len(logits) - 1)
}

// token returns the token of a byte, or 0 for an unknown one.
func (c *corpus) token(b byte) int32 {
	for id, symbol := range c.symbols {
		if symbol == b {
			return int32(id)
		}
	}
	return 0
}

// entropy returns the minimum loss of a unigram model, which knows only the frequency of each byte.
func (c *corpus) entropy() (sum float64) {
	count := make([]int, len(c.symbols))
	for _, id := range c.ids {
		count[id]++
	}
	for _, n := range count {
		p := float64(n) / float64(len(c.ids))
		sum -= p * math.Log(p)
	}
	return sum
}
