package simd

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A pool is the goroutines that help the callers of a backend: up to
// GOMAXPROCS - 1, or to the limit less one, whatever the number of calls. They are started when a call has
// no idle one, sleep between calls, and end with the backend.
//
// A caller works on its own call, so a call never depends on the pool having
// time for it. A pool must not refer to its backend, which could then never be
// collected.
type pool struct {
	mu     sync.Mutex
	wake   *sync.Cond // signaled when a call asks for help
	calls  []*job     // that ask for help, the oldest first
	limit  int        // goroutines of a call, 0 for GOMAXPROCS
	size   int
	idle   int
	closed bool
	asked  atomic.Int64 // how often a call asked for help
}

func newPool() *pool {
	c := new(pool)
	c.wake = sync.NewCond(&c.mu)
	return c
}

// bound makes a kernel's calls, and what is asked of them, those of no more goroutines than
// the limit. Small ones run on one; to predict that, too, would make the next larger ones
// look faster.
func (c *pool) bound(k *flashkit.Kernel) {
	run, cost, needs, size := k.Run, k.Cost, k.Needs, &sizing{cost: k.Cost}
	if c.limit < 0 {
		err := &flashkit.ProblemError{Field: "simd.Workers", Value: strconv.Itoa(c.limit), Reason: "must be at least 1, or 0 for GOMAXPROCS"}
		run = func(context.Context, *flashkit.Call) error { return err }
	}
	k.Run = func(ctx context.Context, call *flashkit.Call) error {
		defer func(n int) { call.Workers = n }(call.Workers)
		c.allow(call)
		if size.isSmall(call) {
			call.Workers = 1
		}
		return run(ctx, call)
	}
	k.Cost = func(call *flashkit.Call) time.Duration {
		x := copied(call)
		defer forget(x)
		c.allow(x)
		return cost(x)
	}
	k.Needs = func(call *flashkit.Call) flashkit.Memory {
		x := copied(call)
		defer forget(x)
		c.allow(x)
		if size.isSmall(x) {
			x.Workers = 1
		}
		return needs(x)
	}
}

// allow lowers how many goroutines a call may have to the limit.
func (c *pool) allow(call *flashkit.Call) {
	if c.limit > 0 && (call.Workers == 0 || call.Workers > c.limit) {
		call.Workers = c.limit
	}
}

// copied returns a copy of a call that is asked about, as others may ask about it too. It
// is to be forgotten.
func copied(call *flashkit.Call) *flashkit.Call {
	x := copies.Get().(*flashkit.Call)
	*x = *call
	return x
}

func forget(x *flashkit.Call) {
	*x = flashkit.Call{}
	copies.Put(x)
}

// copies are those of calls that were asked about, so that one allocates nothing.
var copies = sync.Pool{New: func() any { return new(flashkit.Call) }}

// smallTime is what a call takes that has no helper: to wake one takes about as long, and
// keeps a processor from others.
const smallTime = 20 * time.Microsecond

// A sizing says which calls of a kernel are small. It remembers the last one, as a
// prediction takes longer than to see that a call is like that.
type sizing struct {
	cost func(*flashkit.Call) time.Duration

	mu      sync.Mutex
	problem flashkit.Problem
	traits  flashkit.Traits
	small   bool
}

// isSmall reports whether a call that may have helpers is predicted to take one goroutine
// no more than smallTime.
func (s *sizing) isSmall(c *flashkit.Call) bool {
	if workersOf(c) == 1 {
		return false
	}
	if !s.mu.TryLock() {
		return s.predict(c)
	}
	defer s.mu.Unlock()
	if s.problem != c.Problem || s.traits != c.Traits {
		s.problem, s.traits, s.small = c.Problem, c.Traits, s.predict(c)
	}
	return s.small
}

func (s *sizing) predict(c *flashkit.Call) bool {
	defer func(n int) { c.Workers = n }(c.Workers)
	c.Workers = 1
	return s.cost(c) <= smallTime
}

// run works on j with up to the given number of helpers and returns when all of
// them have left it.
func (c *pool) run(j *job, helpers int) {
	if helpers == 0 {
		j.work(0)
		return
	}
	c.offer(j, helpers)
	j.work(0)
	c.mu.Lock()
	c.remove(j)
	c.mu.Unlock()
	poll(func() bool { return j.present.Load() == 0 })
	j.helpers.Wait()
}

func (c *pool) offer(j *job, helpers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.slots = helpers
	if c.closed {
		return
	}
	c.calls = append(c.calls, j)
	c.asked.Add(1)
	for range min(helpers, c.idle) {
		c.wake.Signal()
	}
	most := workers()
	if c.limit > 0 {
		most = min(most, c.limit)
	}
	for range min(helpers-c.idle, most-1-c.size) {
		c.size++
		go c.serve()
	}
}

// remove takes j off the calls that ask for help. The caller holds mu.
func (c *pool) remove(j *job) {
	if i := slices.Index(c.calls, j); i >= 0 {
		c.calls = slices.Delete(c.calls, i, i+1)
	}
}

func (c *pool) serve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		if len(c.calls) == 0 && !c.spin() {
			c.idle++
			c.wake.Wait()
			c.idle--
		}
		if len(c.calls) == 0 {
			continue
		}
		j := c.calls[0]
		slot := j.slots
		if j.slots--; j.slots == 0 {
			c.remove(j)
		}
		j.helpers.Add(1)
		j.present.Add(1)
		c.mu.Unlock()
		j.work(slot)
		j.present.Add(-1)
		j.helpers.Done()
		c.mu.Lock()
	}
	c.size--
}

// spin waits a little for the next call or phase, which often follows at once,
// and reports whether there is one, or none will come: waking a sleeping
// goroutine takes longer than a small problem. Others may have the processor
// meanwhile. The caller holds mu.
func (c *pool) spin() bool {
	seen := c.asked.Load()
	c.mu.Unlock()
	poll(func() bool { return c.asked.Load() != seen })
	c.mu.Lock()
	return len(c.calls) > 0 || c.closed
}

// poll waits until ready, but not for long. It seldom yields: with many helpers the
// lock of the runtime's scheduler is what a small call would wait for.
func poll(ready func() bool) {
	for range 20 {
		for range 500 {
			if ready() {
				return
			}
		}
		runtime.Gosched()
	}
}

// close lets the goroutines end. Calls in progress finish, and later ones have
// no help.
func (c *pool) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.calls = nil
	c.wake.Broadcast()
}

// workersOf returns how many goroutines the call may use. It is not inlined, so that
// newPlan is, and plans stay off the heap.
//
//go:noinline
func workersOf(c *flashkit.Call) int {
	if n := workers(); c.Workers == 0 || n < c.Workers {
		return n
	}
	return c.Workers
}

// workers returns how many goroutines any call may use: GOMAXPROCS, not older than
// procsAge. The runtime answers under the lock of its scheduler, which takes longer
// than a small call while other goroutines come and go.
func workers() int {
	now := int64(time.Since(started))
	if n := procs.n.Load(); n > 0 && now < procs.until.Load() {
		return int(n)
	}
	n := runtime.GOMAXPROCS(0)
	procs.n.Store(int64(n))
	procs.until.Store(now + int64(procsAge))
	return n
}

const procsAge = time.Millisecond

// procs is GOMAXPROCS as last seen, which like it belongs to the process.
var (
	started = time.Now()
	procs   struct{ n, until atomic.Int64 } // until, since started
)
