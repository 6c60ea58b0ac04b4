package encoder

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit/internal/workers"
	"github.com/flashkit-go/flashkit/nn"
)

// A batch is packed sequences of tokens, without padding.
type batch struct {
	ids    []int32 // [rows]
	types  []int32 // [rows]; nil is 0 for all
	starts []int32 // [sequences + 1], from 0 to rows: sequence b has rows [starts[b], starts[b+1])
	skip   int     // leading tokens of each sequence that pooling excludes
}

// A tail computes results from the hidden states of packed sequences.
type tail interface {
	// forward returns a row for each sequence, or for each token if perToken is true.
	forward(s *nn.Step, x nn.Tensor, skip int) nn.Tensor
	perToken() bool
	width() int // features of a row of the result
}

// A step runs batches and keeps the memory for the next batch. It divides a batch into groups. A
// group is sequences with at most 256 tokens in total, or one longer sequence. All tokens of a
// group pass through the layers together. One goroutine at a time may use a step.
type step struct {
	model  family
	gpu    *gpu // runs the layers; nil for the CPU
	engine *nn.Engine
	pool   *workers.Pool
	groups []group // memory of each worker

	// The state of the call in progress:
	ctx   context.Context
	out   []float32
	batch batch
	tail  tail
	cuts  []int        // the first sequence of each group, then the number of sequences
	solo  int          // number of groups that one worker runs alone; all workers share each later group
	next  atomic.Int64 // the next group that one worker runs alone

	mu       sync.Mutex
	progress func(done, total int) // nil, or called after each group, one call at a time
	done     int                   // finished sequences
}

// groupRows is the maximum number of tokens of a group. A longer sequence is a group of its own.
// The activations of a layer for groupRows tokens fit the L2 cache.
const groupRows = 256

// run sets out to the tail's results for a valid batch, with at most the given number of workers.
// After an error, out is undefined. If one group has more tokens than a worker's equal share, all
// workers share every group. Otherwise each worker first runs whole groups alone. All workers then
// share each remaining group; these groups are fewer than the workers.
func (s *step) run(ctx context.Context, out []float32, b batch, t tail, limit int) error {
	s.ctx, s.out, s.batch, s.tail, s.done = ctx, out, b, t, 0
	longest := s.cut()
	most, n := workers.Most(limit), len(s.cuts)-1
	for len(s.groups) < most {
		s.groups = append(s.groups, group{step: s.engine.NewStep()})
	}
	s.solo, s.next = 0, atomic.Int64{}
	if s.gpu == nil && most > 1 && longest <= len(b.ids)/most {
		s.solo = n - n%most
		s.pool.Run((*task)(s), min(most, s.solo)-1)
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
	s.ctx, s.out, s.batch, s.tail, s.progress = nil, nil, batch{}, nil, nil
	return err
}

// cut divides the batch into groups and returns the number of tokens of the longest group. It sets
// s.cuts. Groups must not depend on the number of workers: attention's kernel, and with it the last bits
// of a sequence's results, may depend on the other sequences of its group.
func (s *step) cut() (longest int) {
	starts, limit := s.batch.starts, int32(groupRows)
	if s.gpu != nil {
		limit = gpuRows
	}
	s.cuts = append(s.cuts[:0], 0)
	for i, last := 0, len(starts)-1; i < last; s.cuts = append(s.cuts, i) {
		first := starts[i]
		for i++; i < last && starts[i+1]-first <= limit; {
			i++
		}
		longest = max(longest, int(starts[i]-first))
	}
	return longest
}

// A task is a step with the method that workers call.
type task step

// Work runs groups on one worker, until all of the first solo groups are taken or a group fails.
func (t *task) Work(slot int) {
	s := (*step)(t)
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
func (s *step) runGroup(g *group, i, most int) {
	starts := s.batch.starts[s.cuts[i] : s.cuts[i+1]+1]
	from, to := starts[0], starts[len(starts)-1]
	g.starts = g.starts[:0]
	for _, start := range starts {
		g.starts = append(g.starts, start-from)
	}
	rows := nn.Packed(g.starts)
	tokens, types := nn.Tokens{IDs: s.batch.ids[from:to], Rows: rows}, nn.Tokens{Rows: rows}
	if s.batch.types != nil {
		types.IDs = s.batch.types[from:to]
	} else {
		if len(g.zeros) < len(tokens.IDs) {
			g.zeros = make([]int32, len(tokens.IDs))
		}
		types.IDs = g.zeros[:len(tokens.IDs)]
	}
	g.step.Workers = most
	g.step.Begin(s.ctx)
	y := s.tail.forward(g.step, s.hidden(g.step, tokens, types), s.batch.skip)
	if g.err = g.step.Err(); g.err != nil {
		return
	}
	first := s.cuts[i]
	if s.tail.perToken() {
		first = int(from)
	}
	copy(s.out[first*y.Features:], y.Data[:y.Count()*y.Features])
	if s.progress != nil {
		s.mu.Lock()
		s.done += len(starts) - 1
		s.progress(s.done, len(s.batch.starts)-1)
		s.mu.Unlock()
	}
}

// hidden returns the hidden states of tokens.
func (s *step) hidden(on *nn.Step, tokens, types nn.Tokens) nn.Tensor {
	x := s.model.embed(on, tokens, types)
	switch {
	case on.Err() != nil:
	case s.gpu == nil:
		s.model.body().forward(on, x)
	default:
		if err := s.gpu.run(s.ctx, on, s.model.body(), x, s.model.shape().positions); err != nil {
			on.Fail(err)
		}
	}
	return x
}

// A hidden is a tail that returns the hidden states.
type hidden int

func (h hidden) forward(_ *nn.Step, x nn.Tensor, _ int) nn.Tensor { return x }
func (h hidden) perToken() bool                                   { return true }
func (h hidden) width() int                                       { return int(h) }
