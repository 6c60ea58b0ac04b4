package main

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// time repeats the call for r.Seconds and returns the median and least times. If a call is short,
// one untimed call comes before the timed calls. After these calls, another untimed call records
// the kernel. With r.Fresh, each timed call first allocates its outputs.
func (c *cell) time(ctx context.Context, r *request) (reply, error) {
	limit := time.Duration(r.Seconds * float64(time.Second))
	if c.last < limit/4 {
		if _, err := c.call(ctx, c.d); err != nil {
			return reply{}, err
		}
	}
	var times []time.Duration
	outputs := c.outputs()
	for start := time.Now(); len(times) == 0 || time.Since(start) < limit; {
		var before time.Duration
		if r.Fresh {
			before = allocate(outputs)
		}
		took, err := c.call(ctx, c.d)
		if err != nil {
			return reply{}, err
		}
		times = append(times, before+took)
	}
	median := medianOf(times)
	if c.last = median; median < limit/4 {
		if _, err := c.note(ctx); err != nil {
			return reply{}, err
		}
		c.last = median
	}
	return reply{Kernel: c.kernel, Seconds: median.Seconds(), Least: times[0].Seconds(), Calls: len(times)}, nil
}

// allocate replaces tensors by new tensors of zeros and returns the time.
func allocate(tensors map[string]*flashkit.Tensor) time.Duration {
	start := time.Now()
	for _, t := range tensors {
		s := t.Shape()
		*t = flashkit.Zeros(t.DType(), s[0], s[1], s[2], s[3])
	}
	return time.Since(start)
}

func medianOf(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	n := len(times)
	return (times[(n-1)/2] + times[n/2]) / 2
}

// overhead returns the median difference in time between a call through dispatch and a run of the
// kernel alone. The order of the two runs alternates, because the second run finds K and V in the
// processor's caches. With r.Grow the KV cache grows by one key per call and ends at its capacity.
func (c *cell) overhead(ctx context.Context, r *request) (reply, error) {
	if r.Grow && (c.args.Seqs == nil || c.args.Seqs.KVLens == nil || r.Calls >= c.p.KVLen) {
		return reply{}, fmt.Errorf("%v cannot grow by %d", c.p, r.Calls)
	}
	alone, err := c.alone(ctx)
	if err != nil {
		return reply{}, err
	}
	whole := func() (time.Duration, error) { return c.call(ctx, c.d) }
	var orders [2][]time.Duration
	var wholes []time.Duration
	start := time.Now()
	for i := range r.Calls {
		if time.Since(start).Seconds() > r.Limit {
			return reply{}, fmt.Errorf("%d calls of %s take longer than %.3g s", r.Calls, c.kernel, r.Limit)
		}
		c.step(r, i)
		order, first, second := 0, whole, alone
		if i%2 == 1 {
			order, first, second = 1, alone, whole
		}
		x, err := first()
		if err != nil {
			return reply{}, err
		}
		y, err := second()
		if err != nil {
			return reply{}, err
		}
		if order == 1 {
			x, y = y, x
		}
		orders[order], wholes = append(orders[order], x-y), append(wholes, x)
	}
	overhead := (medianOf(orders[0]) + medianOf(orders[1])) / 2
	allocs, err := c.allocs(ctx, r)
	return reply{Kernel: c.kernel, Seconds: medianOf(wholes).Seconds(), Calls: r.Calls, Overhead: overhead.Seconds(), Allocs: allocs}, err
}

// alone returns a function that runs the cell's kernel without dispatch and returns the time. The
// time does not include the check of the arguments.
func (c *cell) alone(ctx context.Context) (func() (time.Duration, error), error) {
	if _, err := c.note(ctx); err != nil {
		return nil, err
	}
	kernels := c.d.Kernels()
	i := slices.IndexFunc(kernels, func(k flashkit.Kernel) bool { return k.Name == c.kernel })
	if i < 0 {
		return nil, fmt.Errorf("kernel %q is not known", c.kernel)
	}
	call := new(flashkit.Call)
	return func() (time.Duration, error) {
		if err := call.Set(c.p, c.pass, c.args); err != nil {
			return 0, err
		}
		start := time.Now()
		err := kernels[i].Run(ctx, call)
		return time.Since(start), err
	}, nil
}

// step sets the key lengths for call i if the KV cache grows.
func (c *cell) step(r *request, i int) {
	if !r.Grow {
		return
	}
	for b := range c.args.Seqs.KVLens {
		c.args.Seqs.KVLens[b] = int32(c.p.KVLen - r.Calls + i + 1)
	}
}

func (c *cell) allocs(ctx context.Context, r *request) (float64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range r.Calls {
		c.step(r, i)
		if _, err := c.call(ctx, c.d); err != nil {
			return 0, err
		}
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(r.Calls), nil
}

// read returns the median time of reading every byte of K and V on all cores.
func (c *cell) read(seconds float64) reply {
	k, v := memory(&c.args.K), memory(&c.args.V)
	var times []time.Duration
	for start := time.Now(); len(times) == 0 || time.Since(start).Seconds() < seconds; {
		one := time.Now()
		readAll(k)
		readAll(v)
		times = append(times, time.Since(one))
	}
	return reply{Seconds: medianOf(times).Seconds(), Calls: len(times), Bytes: float64(len(k) + len(v))}
}

// readAll reads x on all cores: it counts the bytes that are 1. bytes.Count uses vector loads, and
// its speed does not depend on the data.
func readAll(x []byte) int64 {
	const piece = 1 << 20
	var next, found atomic.Int64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for from := next.Add(piece) - piece; from < int64(len(x)); from = next.Add(piece) - piece {
				found.Add(int64(bytes.Count(x[from:min(from+piece, int64(len(x)))], []byte{1})))
			}
		})
	}
	wait.Wait()
	return found.Load()
}

func memory(t *flashkit.Tensor) []byte {
	if x := t.Float32s(); x != nil {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
	}
	x := t.Uint16s()
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x))
}
