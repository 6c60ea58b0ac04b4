package replay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
)

type player struct {
	data  map[flashkit.Problem][]*input.Tensors // tensors by the largest problem of a step; one set per caller
	work  []uint64                              // memory that touch writes to
	crowd crowd
}

func newPlayer(ctx context.Context, t *Trace, inputs input.Maker) (*player, error) {
	p, touch := &player{data: map[flashkit.Problem][]*input.Tensors{}}, 0
	for problem, n := range t.sets() {
		for range n {
			backward := t.backward(problem)
			data, err := inputs.Make(ctx, problem, backward)
			if err != nil {
				return nil, err
			}
			if !backward && !problem.Carry {
				data.Args.LSE = flashkit.Tensor{} // a program without training requests no LSE
			}
			p.data[problem] = append(p.data[problem], data)
		}
	}
	for i := range t.steps {
		touch = max(touch, t.steps[i].touch)
	}
	p.work = make([]uint64, touch/8)
	return p, nil
}

// A caller makes calls one after another and observes their kernels.
type caller struct {
	dispatch *dispatch.Dispatcher
	last     dispatch.Ran
}

func newCallers(d *dispatch.Dispatcher, n int) []*caller {
	list := make([]*caller, n)
	for i := range list {
		c := new(caller)
		c.dispatch = d.WithObserver(func(r dispatch.Ran) { c.last = r })
		list[i] = c
	}
	return list
}

type timedCall struct {
	kernel string
	took   time.Duration // time of the kernel
	wall   time.Duration // time of the whole call
}

// play makes calls [from, from+n) of a step and returns their times in order. It also returns their
// total time or, with several callers, the elapsed time.
func (p *player) play(ctx context.Context, s *step, from, n int, callers []*caller) ([]timedCall, time.Duration, error) {
	if err := p.crowd.set(ctx, s.busy); err != nil {
		return nil, 0, err
	}
	list, total := make([]timedCall, n), time.Duration(0)
	if s.callers > 1 {
		total, err := p.share(ctx, s, from, list, callers)
		return list, total, err
	}
	for i := range list {
		touch(p.work[:s.touch/8])
		var err error
		if list[i], err = p.call(ctx, s, from+i, callers[0], 0); err != nil {
			return nil, 0, err
		}
		total += list[i].wall
		if err := pause(ctx, s.pause); err != nil {
			return nil, 0, err
		}
	}
	return list, total, nil
}

// share makes the calls of list on s.callers goroutines, each with its own tensors. It sets the
// calls' times in list.
func (p *player) share(ctx context.Context, s *step, from int, list []timedCall, callers []*caller) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for c := range s.callers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(list); i = int(next.Add(1)) - 1 {
				var err error
				if list[i], err = p.call(ctx, s, from+i, callers[c], c); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return time.Since(start), context.Cause(ctx)
}

// call makes call i of a step. set is the index of the set of tensors that the call uses.
func (p *player) call(ctx context.Context, s *step, i int, c *caller, set int) (r timedCall, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	problem, data := s.at(i), p.data[s.largest()][set]
	keys := problem.KVLen
	args, compute := data.Args, c.dispatch.Forward
	if s.grow > 0 {
		args.K, args.V = first(args.K, keys), first(args.V, keys)
	}
	if s.pass == flashkit.PassBackward {
		if s.grow > 0 {
			args.DK, args.DV = first(args.DK, keys), first(args.DV, keys)
		}
		compute = c.dispatch.Backward
	}
	start := time.Now()
	err = compute(ctx, problem, &args)
	return timedCall{c.last.Kernel, c.last.Took, time.Since(start)}, err
}

// first returns a view of the first rows of each head of a dense tensor. The view is like a KV
// cache in which only these rows are filled.
func first(t flashkit.Tensor, rows int) flashkit.Tensor {
	s, strides := t.Shape(), t.Strides()
	switch t.DType() {
	case flashkit.Float16:
		t = flashkit.F16(t.Uint16s(), s[0], s[1], rows, s[3])
	case flashkit.BFloat16:
		t = flashkit.BF16(t.Uint16s(), s[0], s[1], rows, s[3])
	default:
		t = flashkit.F32(t.Float32s(), s[0], s[1], rows, s[3])
	}
	return t.WithStrides(strides[0], strides[1], strides[2])
}

// touch writes to every cache line of memory. A program's other work between two calls replaces the
// data in the caches in the same way.
func touch(memory []uint64) {
	for i := 0; i < len(memory); i += 8 {
		memory[i]++
	}
}

func pause(ctx context.Context, t time.Duration) error {
	if t == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
