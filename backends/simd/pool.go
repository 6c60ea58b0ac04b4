package simd

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A pool is the goroutines that help the callers of a backend: up to
// GOMAXPROCS - 1, whatever the number of calls. They are started when a call has
// no idle one, sleep between calls, and end with the backend.
//
// A caller works on its own call, so a call never depends on the pool having
// time for it. A pool must not refer to its backend, which could then never be
// collected.
type pool struct {
	mu     sync.Mutex
	wake   *sync.Cond // signaled when a call asks for help
	calls  []*job     // that ask for help, the oldest first
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

// run works on j with up to the given number of helpers and returns when all of
// them have left it.
func (c *pool) run(j *job, helpers int) {
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
	if helpers == 0 || c.closed {
		return
	}
	c.calls = append(c.calls, j)
	c.asked.Add(1)
	for range min(helpers, c.idle) {
		c.wake.Signal()
	}
	for range min(helpers-c.idle, workers()-1-c.size) {
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

// workers returns how many goroutines a call may use: GOMAXPROCS, not older than
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
