package simd

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// A job is one call in progress. Its work is cut into items, numbered so that
// the long ones come first; workers take the next number until none is left.
// Which worker takes an item does not touch the item's result, so the bits do
// not depend on the number of workers.
//
// Jobs are pooled for their workspace. A job is cleared before it returns.
type job struct {
	plan
	args  *flashkit.Args
	scale float64 // of the dot products
	unit  float64 // of the scores: scale, or 1 where features have made them out of dot products
	base2 float32 // unit * log2(e)

	run   func(j *job, ws *arena, item int)
	items int64
	next  atomic.Int64
	done  <-chan struct{} // of the call's context

	spaces []arena        // one for each worker
	shared arena          // of all workers, where a kernel needs it
	passed []atomic.Int64 // how far each item has come, where later items wait for it

	pool *pool
}

// newJob returns a job for c.
func (b *Backend) newJob(c *flashkit.Call) *job {
	j := b.last.Swap(nil)
	if j == nil {
		j = b.jobs.Get().(*job)
	}
	if b.poisoned.Load() {
		j.poison()
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

// parallel runs the items [0, n) on as many goroutines as the call may use, each with a
// workspace of the given number of floats, until the context is done.
func (j *job) parallel(ctx context.Context, run func(*job, *arena, int), n, floats int) {
	j.run, j.items, j.done = run, int64(n), ctx.Done()
	j.next.Store(0)
	work := phase{n, floats}
	j.hold(work) // here, not by the worker, so that a second call allocates nothing
	j.pool.Run(j, poolSize(j.workers, []phase{work})-1)
}

// A phase is items that run at the same time, and the floats of workspace that
// each worker needs for them.
type phase struct{ items, floats int }

// poolSize returns how many of the workers have something to do in a phase.
func poolSize(workers int, phases []phase) int {
	items := 1
	for _, f := range phases {
		items = max(items, f.items)
	}
	return min(workers, items)
}

// space returns the floats that worker w needs for all of the phases, one after
// the other. A phase without items needs none, whatever its dimensions are.
func space(w int, phases []phase) int {
	most := 0
	for _, f := range phases {
		if w < f.items {
			most = max(most, f.floats)
		}
	}
	return most
}

// hold reserves the workspace of all the phases at once, so that a larger one
// does not replace that of a smaller one.
func (j *job) hold(phases ...phase) {
	n := poolSize(j.workers, phases)
	for len(j.spaces) < n {
		j.spaces = append(j.spaces, arena{poisoned: j.shared.poisoned})
	}
	for w := range n {
		j.spaces[w].reserve(space(w, phases))
	}
}

// memory returns the bytes that hold reserves for a new job.
func memory(c *flashkit.Call, phases ...phase) float64 {
	floats := 0.0
	for w := range poolSize(workersOf(c), phases) {
		floats += float64(space(w, phases))
	}
	return 4 * floats
}

// count returns x, a number of floats, as an int. What no int can count no tensor
// holds: then it is a problem that is only asked about.
func count(x float64) int { return int(min(x, math.MaxInt/2)) }

// release gives j back to the pool and returns how the call ended.
func (b *Backend) release(ctx context.Context, j *job) error {
	j.call, j.p, j.args, j.run, j.done = nil, flashkit.Problem{}, nil, nil, nil
	if !b.last.CompareAndSwap(nil, j) {
		b.jobs.Put(j)
	}
	return ctx.Err()
}

// Work takes items until none is left. Each worker has a space of its own.
func (j *job) Work(space int) {
	ws := &j.spaces[space]
	for !j.canceled() {
		item := j.next.Add(1) - 1
		if item >= j.items {
			return
		}
		ws.reset()
		j.run(j, ws, int(item))
	}
}

// canceled reports whether the call's context is done. Kernels ask often enough
// to end within 200 microseconds.
func (j *job) canceled() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// An arena hands out float32 workspace to one worker.
type arena struct {
	all, free []float32
	others    *otherHeads // of a decode kernel's item
	poisoned  bool        // tests: see Backend.Poison
}

func (a *arena) reserve(n int) {
	if len(a.all) < n {
		a.all = make([]float32, n)
	}
	if a.poisoned {
		a.poison(n)
	}
}

func (a *arena) reset() {
	a.free = a.all
	if a.poisoned {
		a.poison(len(a.all))
	}
}

// take returns n floats that hold leftovers of earlier items.
func (a *arena) take(n int) []float32 {
	x := a.free[:n:n]
	a.free = a.free[n:]
	return x
}
