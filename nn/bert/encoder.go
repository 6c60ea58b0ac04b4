package bert

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/workers"
	"github.com/flashkit-go/flashkit/nn"
)

// An Encoder makes Steps, which run a Model on batches of tokens. An Encoder is safe for concurrent
// use.
type Encoder struct {
	model  *Model
	engine *nn.Engine // nil if there is no Dispatcher
	pool   workers.Pool
}

// NewEncoder returns an Encoder that runs m with d. Close does not close d. If m or d is nil, all
// Steps of the Encoder fail.
func NewEncoder(m *Model, d *dispatch.Dispatcher) *Encoder {
	e := &Encoder{model: m}
	if d != nil {
		e.engine = nn.NewEngine(d)
	}
	return e
}

// Close ends the Encoder's goroutines. The Dispatcher stays open. No call of a Step may be in
// progress.
func (e *Encoder) Close() {
	e.pool.Close()
	if e.engine != nil {
		e.engine.Close()
	}
}

// NewStep returns a new Step. One goroutine at a time may use it.
func (e *Encoder) NewStep() *Step { return &Step{encoder: e} }

// A Batch is packed sequences of tokens, without padding. Hidden and Vectors do not change it.
type Batch struct {
	IDs    []int32 // [rows], from 0 to Vocab - 1
	Starts []int32 // [sequences + 1], from 0 to rows: sequence b has rows [Starts[b], Starts[b+1])
	Types  []int32 // [rows], from 0 to Types - 1; nil is 0 for all
}

// A Step runs batches and keeps the memory for the next batch. It divides a batch into groups. A
// group is sequences with at most 256 tokens in total, or one longer sequence. All tokens of a
// group pass through the layers together. Each worker needs about 3*Hidden + max(4*Hidden,
// Intermediate) floats per token of a group. One goroutine at a time may use a Step.
type Step struct {
	// Workers is the maximum number of goroutines of a call, including the caller's. 0 means
	// GOMAXPROCS. Results do not depend on Workers.
	Workers int

	encoder *Encoder
	groups  []group // memory of each worker

	// The state of the call in progress:
	ctx    context.Context
	out    []float32
	batch  Batch
	pooled bool
	cuts   []int        // the first sequence of each group, then the number of sequences
	solo   int          // number of groups that one worker runs alone; all workers share each later group
	next   atomic.Int64 // the next group that one worker runs alone
}

// groupRows is the maximum number of tokens of a group. A longer sequence is a group of its own.
// The activations of a layer for groupRows tokens fit the L2 cache.
const groupRows = 256

// Hidden sets out, [rows, Hidden], to the last hidden states of a batch. If Hidden returns a
// *flashkit.ProblemError, out is unchanged. After an error of the context or of
// dispatch.Dispatcher.Forward, out is undefined.
func (s *Step) Hidden(ctx context.Context, out []float32, b Batch) error {
	return s.run(ctx, out, b, false)
}

// Vectors sets out, [sequences, Hidden], to one vector per sequence: the mean of its last hidden
// states, normalized to length 1. An empty sequence has a zero vector. Vectors returns the same
// errors as Hidden.
func (s *Step) Vectors(ctx context.Context, out []float32, b Batch) error {
	return s.run(ctx, out, b, true)
}

// run computes Hidden, or Vectors if pooled. If one group has more tokens than a worker's equal
// share, all workers share every group. Otherwise each worker first runs whole groups alone. All
// workers then share each remaining group; these groups are fewer than the workers.
func (s *Step) run(ctx context.Context, out []float32, b Batch, pooled bool) error {
	if err := s.check(&b, len(out), pooled); err != nil {
		return err
	}
	s.ctx, s.out, s.batch, s.pooled = ctx, out, b, pooled
	longest := s.cut()
	most, n := workers.Most(s.Workers), len(s.cuts)-1
	for len(s.groups) < most {
		s.groups = append(s.groups, group{step: s.encoder.engine.NewStep()})
	}
	s.solo, s.next = 0, atomic.Int64{}
	if most > 1 && longest <= len(b.IDs)/most {
		s.solo = n - n%most
		s.encoder.pool.Run((*task)(s), min(most, s.solo)-1)
	}
	err := ctx.Err()
	for i := range s.groups {
		if err == nil {
			err = s.groups[i].err
		}
	}
	for i := s.solo; i < n && err == nil; i++ {
		s.runGroup(&s.groups[0], i, most)
		err = s.groups[0].err
	}
	for i := range s.groups {
		s.groups[i].err = nil
	}
	s.ctx, s.out, s.batch = nil, nil, Batch{}
	return err
}

// cut divides the batch into groups and returns the number of tokens of the longest group. It sets
// s.cuts. Groups must not depend on the number of workers: the last bits of a sequence's results
// depend on the other sequences of its group.
func (s *Step) cut() (longest int) {
	starts := s.batch.Starts
	s.cuts = append(s.cuts[:0], 0)
	for i, last := 0, len(starts)-1; i < last; s.cuts = append(s.cuts, i) {
		first := starts[i]
		for i++; i < last && starts[i+1]-first <= groupRows; {
			i++
		}
		longest = max(longest, int(starts[i]-first))
	}
	return longest
}

// A task is a Step with the method that workers call.
type task Step

// Work runs groups on one worker, until all of the first s.solo groups are taken or a group fails.
func (t *task) Work(slot int) {
	s := (*Step)(t)
	g := &s.groups[slot]
	for g.err == nil {
		i := int(s.next.Add(1)) - 1
		if i >= s.solo {
			return
		}
		s.runGroup(g, i, 1)
	}
}

// A group is a worker's memory for the group of sequences that the worker runs.
type group struct {
	step   *nn.Step
	err    error
	starts []int32 // starts of the group's sequences, from 0
	zeros  []int32 // token types if the batch has none
}

// runGroup runs group i and writes the group's part of out. most is the maximum number of workers.
func (s *Step) runGroup(g *group, i, most int) {
	starts := s.batch.Starts[s.cuts[i] : s.cuts[i+1]+1]
	from, to := starts[0], starts[len(starts)-1]
	g.starts = g.starts[:0]
	for _, start := range starts {
		g.starts = append(g.starts, start-from)
	}
	rows := nn.Packed(g.starts)
	tokens, types := nn.Tokens{IDs: s.batch.IDs[from:to], Rows: rows}, nn.Tokens{Rows: rows}
	if s.batch.Types != nil {
		types.IDs = s.batch.Types[from:to]
	} else {
		if len(g.zeros) < len(tokens.IDs) {
			g.zeros = make([]int32, len(tokens.IDs))
		}
		types.IDs = g.zeros[:len(tokens.IDs)]
	}
	g.step.Workers = most
	g.step.Begin(s.ctx)
	x := s.encoder.model.forward(g.step, tokens, types).Data
	if g.err = g.step.Err(); g.err != nil {
		return
	}
	h := s.encoder.model.config.Hidden
	if !s.pooled {
		copy(s.out[int(from)*h:], x)
		return
	}
	for j := range len(g.starts) - 1 {
		n := int(g.starts[j+1]-g.starts[j]) * h
		meanVector(s.out[(s.cuts[i]+j)*h:][:h], x[:n])
		x = x[n:]
	}
}

func (s *Step) check(b *Batch, out int, pooled bool) error {
	if s.encoder == nil || s.encoder.model == nil || s.encoder.engine == nil {
		return errors.New("bert: the Step has no Encoder with a Model and a Dispatcher: see NewEncoder and Encoder.NewStep")
	}
	c, rows := &s.encoder.model.config, len(b.IDs)
	switch {
	case s.Workers < 0:
		return problem("Step.Workers", s.Workers, "must be at least 1, or 0 for GOMAXPROCS")
	case rows > math.MaxInt32:
		return problem("Batch.IDs.len", rows, "must be at most %d", math.MaxInt32)
	case len(b.Starts) == 0 || b.Starts[0] != 0:
		return problem("Batch.Starts", b.Starts[:min(1, len(b.Starts))], "must begin with 0")
	case int(b.Starts[len(b.Starts)-1]) != rows:
		return problem("Batch.Starts", b.Starts[len(b.Starts)-1], "must end with the number of IDs, %d", rows)
	case b.Types != nil && len(b.Types) != rows:
		return problem("Batch.Types.len", len(b.Types), "must be the number of IDs, %d", rows)
	}
	if err := checkElements(b, c); err != nil {
		return err
	}
	want := rows
	if pooled {
		want = len(b.Starts) - 1
	}
	if want > math.MaxInt/4/c.Hidden || out != want*c.Hidden {
		return problem("out.len", out, "must be %d rows of Hidden = %d", want, c.Hidden)
	}
	return nil
}

func checkElements(b *Batch, c *Config) error {
	for i := 1; i < len(b.Starts); i++ {
		n := int64(b.Starts[i]) - int64(b.Starts[i-1])
		if n < 0 {
			return problem(element("Starts", i), b.Starts[i], "must not be below %d before it", b.Starts[i-1])
		}
		if n > int64(c.Positions) {
			return problem(element("Starts", i), b.Starts[i], "ends a sequence of %d tokens, and the model has %d positions", n, c.Positions)
		}
	}
	for i, id := range b.IDs {
		if id < 0 || int(id) >= c.Vocab {
			return problem(element("IDs", i), id, "must be from 0 to %d", c.Vocab-1)
		}
	}
	for i, t := range b.Types {
		if t < 0 || int(t) >= c.Types {
			return problem(element("Types", i), t, "must be from 0 to %d", c.Types-1)
		}
	}
	return nil
}

func element(field string, i int) string { return "Batch." + field + "[" + strconv.Itoa(i) + "]" }
