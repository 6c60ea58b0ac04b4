package simd

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// A job is one call in progress. Its work is cut into items.
// Which worker takes an item does not touch the item's result, so the bits do
// not depend on the number of workers.
//
// Jobs are pooled for their workspace. A job is cleared before it returns.
type job struct {
	pool.Queue
	plan
	args  *flashkit.Args
	scale float64 // of the dot products
	unit  float64 // of the scores: scale, or 1 where features have made them out of dot products
	base2 float32 // unit * log2(e)

	run    func(j *job, ws *pool.Arena, item int)
	others []otherHeads   // of a decode kernel's items, one for each worker
	passed []atomic.Int64 // how far each item has come, where later items wait for it

	pool *pool.Pool
}

// newJob returns a job for c.
func (b *Backend) newJob(c *flashkit.Call) *job {
	j := b.last.Swap(nil)
	if j == nil {
		j = b.jobs.Get().(*job)
	}
	if b.poisoned.Load() {
		j.Poison()
	}
	j.reset(c)
	j.pool, j.args = b.pool, c.Args
	j.scale = c.SoftmaxScale()
	j.unit = j.scale
	if adjusts(c) {
		j.unit = 1
	}
	j.base2 = float32(j.unit * math.Log2E)
	return j
}

// parallel runs the items of a phase on as many goroutines as the call may use, until the context is done.
func (j *job) parallel(ctx context.Context, run func(*job, *pool.Arena, int), work pool.Phase) {
	j.run = run
	j.Queue.Run(ctx, j.pool, j, j.workers, work)
}

// Item computes an item.
func (j *job) Item(ws *pool.Arena, item int) { j.run(j, ws, item) }

// count returns x, a number of floats, as an int. What no int can count no tensor
// holds: then it is a problem that is only asked about.
func count(x float64) int { return int(min(x, math.MaxInt/2)) }

// release gives j back to the pool and returns how the call ended.
func (b *Backend) release(ctx context.Context, j *job) error {
	j.Forget()
	j.call, j.p, j.args, j.run = nil, flashkit.Problem{}, nil, nil
	if !b.last.CompareAndSwap(nil, j) {
		b.jobs.Put(j)
	}
	return ctx.Err()
}
