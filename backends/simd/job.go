package simd

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// job is one call in progress, split into items. An item's result does not depend on its worker, so
// the bits do not depend on the number of workers.
//
// Jobs are pooled for their workspace. release clears a job before it puts the job back.
type job struct {
	pool.Queue
	plan
	args  *flashkit.Args
	scale float64 // softmax scale
	unit  float64 // factor of a score in the exponent: scale, or 1 if the score features have already applied scale
	base2 float32 // unit * log2(e)

	run       func(j *job, ws *pool.Arena, item int)
	others    []otherHeads   // decode: one entry per worker, for the second and later heads of its item
	mass      []float64      // sums of the weights of keys, [batch][heads][keys]
	massLocks [64]sync.Mutex // of the sums of heads, head h of all modulo their number

	progress []atomic.Int64 // for each item, the progress for which later items wait

	pool *pool.Pool
}

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

// parallel runs the items of a phase on up to j.workers goroutines, until ctx is done.
func (j *job) parallel(ctx context.Context, run func(*job, *pool.Arena, int), work pool.Phase) {
	j.run = run
	j.Queue.Run(ctx, j.pool, j, j.workers, work, j.apart)
}

func (j *job) Item(ws *pool.Arena, item int) { j.run(j, ws, item) }

// count converts a number of floats to an int, at most math.MaxInt/2. A call without tensors may
// describe a problem larger than memory.
func count(x float64) int { return int(min(x, math.MaxInt/2)) }

// release puts j back into the pool. It returns the error of ctx.
func (b *Backend) release(ctx context.Context, j *job) error {
	j.Forget()
	j.unstack()
	j.call, j.p, j.args, j.run = nil, flashkit.Problem{}, nil, nil
	if !b.last.CompareAndSwap(nil, j) {
		b.jobs.Put(j)
	}
	return ctx.Err()
}

func (j *job) storeLSE(b, h, i int, lse float32) {
	if t := &j.args.LSE; !t.IsZero() {
		t.Float32s()[t.Offset(b, h, i)] = lse
	}
}
