// Package workers lends goroutines to calculations. Each user, such as a backend, holds a Pool; all
// pools share the goroutines of the process.
//
// The users share goroutines because they share the processors. Goroutines that serve one user
// alone would be idle between its tasks, while other users have work. Goroutines start when the
// first pool asks for help and end when the last such pool is closed.
package workers

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Task is work that the caller of Run shares with its helpers. The caller and each helper call
// Work once. The caller's slot is 0. Each helper has its own slot, from 1 to the number of helpers.
// A helper may come late or not at all.
type Task interface {
	Work(slot int)
}

// A Pool requests helpers for tasks. The zero value has no limit. All methods except SetLimit are
// safe for concurrent use.
type Pool struct {
	limit int

	asked  atomic.Int64
	open   bool // asked for help and not closed; process.mu guards open and the fields below
	closed bool
	busy   int // helpers at work in the pool's tasks
}

// SetLimit bounds the helpers of all the pool's tasks together to n-1. A task then has at most n
// goroutines. If n is 0, only GOMAXPROCS bounds the helpers. SetLimit must precede Run.
func (p *Pool) SetLimit(n int) { p.limit = n }

// Limit returns the limit, or 0 if there is none.
func (p *Pool) Limit() int { return p.limit }

// Asked returns the number of tasks that asked for help.
func (p *Pool) Asked() int64 { return p.asked.Load() }

// Run works on t with at most the given number of helpers. It returns when all helpers have left.
// The caller works too, so a task never depends on helpers.
func (p *Pool) Run(t Task, helpers int) {
	if helpers <= 0 {
		t.Work(0)
		return
	}
	p.asked.Add(1)
	o := process.ask(p, t, helpers)
	t.Work(0)
	process.withdraw(o)
}

// Close ends the goroutines, unless another open pool may need them. Tasks in progress finish, and
// later tasks get no help.
func (p *Pool) Close() { process.leave(p) }

// A crew is a set of goroutines for any number of tasks. No goroutine starts if the crew already
// has GOMAXPROCS - 1 goroutines. The goroutines sleep between tasks.
type crew struct {
	mu     sync.Mutex
	wake   sync.Cond    // signaled when there is an offer
	offers []*offer     // offers with free slots, the oldest first
	unused []*offer     // offers of finished tasks, to be used again
	size   int          // goroutines
	idle   int          // sleeping goroutines
	pools  int          // open pools
	asked  atomic.Int64 // number of offers so far
}

// process is the crew of all pools.
var process = newCrew()

func newCrew() *crew {
	c := new(crew)
	c.wake.L = &c.mu
	return c
}

// An offer is a task that helpers can join.
type offer struct {
	task    Task
	pool    *Pool
	slots   int            // free slots; mu guards it
	helpers sync.WaitGroup // helpers that came
	present atomic.Int64   // helpers still at work
}

func (c *crew) ask(p *Pool, t Task, helpers int) *offer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.closed {
		return nil
	}
	if !p.open {
		p.open = true
		c.pools++
	}
	o := c.newOffer()
	o.task, o.pool, o.slots = t, p, helpers
	c.offers = append(c.offers, o)
	c.asked.Add(1)
	for range min(helpers, c.idle) {
		c.wake.Signal()
	}
	most := Procs() - 1 - c.size
	if p.limit > 0 {
		most = min(most, p.limit-1)
	}
	for range min(helpers-c.idle, most) {
		c.size++
		go c.serve()
	}
	return o
}

func (c *crew) newOffer() *offer {
	n := len(c.unused) - 1
	if n < 0 {
		return new(offer)
	}
	o := c.unused[n]
	c.unused = c.unused[:n]
	return o
}

// withdraw removes o from the offers and waits until all helpers have left the task.
func (c *crew) withdraw(o *offer) {
	if o == nil {
		return
	}
	c.mu.Lock()
	c.remove(o)
	c.mu.Unlock()
	// The helpers leave soon. Each yield of a caller that is locked to its thread, such as a call from
	// C, switches threads twice. The caller therefore waits without yielding at first.
	left := func() bool { return o.present.Load() == 0 }
	if !watch(left, 10000) {
		poll(left)
	}
	o.helpers.Wait()
	c.mu.Lock()
	o.task, o.pool = nil, nil
	c.unused = append(c.unused, o)
	c.mu.Unlock()
}

// remove removes o from the offers. The caller holds mu.
func (c *crew) remove(o *offer) {
	if i := slices.Index(c.offers, o); i >= 0 {
		c.offers = slices.Delete(c.offers, i, i+1)
	}
}

// next returns the oldest offer whose pool has not reached its limit. The caller holds mu.
func (c *crew) next() *offer {
	for _, o := range c.offers {
		if o.pool.limit == 0 || o.pool.busy < o.pool.limit-1 {
			return o
		}
	}
	return nil
}

func (c *crew) serve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.pools > 0 {
		if c.next() == nil && !c.spin() {
			c.idle++
			c.wake.Wait()
			c.idle--
		}
		o := c.next()
		if o == nil {
			continue
		}
		slot, p := o.slots, o.pool
		if o.slots--; o.slots == 0 {
			c.remove(o)
		}
		p.busy++
		o.helpers.Add(1)
		o.present.Add(1)
		task := o.task
		c.mu.Unlock()
		task.Work(slot)
		o.present.Add(-1)
		o.helpers.Done()
		c.mu.Lock()
		p.busy--
	}
	c.size--
}

// spin waits briefly for the next task, because waking a sleeping goroutine takes longer than a
// small problem. It reports whether there is a task or no pool is open. Other goroutines may use
// the processor meanwhile. The caller holds mu.
func (c *crew) spin() bool {
	seen := c.asked.Load()
	c.mu.Unlock()
	poll(func() bool { return c.asked.Load() != seen })
	c.mu.Lock()
	return c.next() != nil || c.pools == 0
}

// poll waits until ready returns true, but only briefly. It seldom yields: a yield takes the lock
// of the runtime's scheduler, and with many helpers a small task would wait for this lock.
func poll(ready func() bool) {
	for range 20 {
		if watch(ready, 500) {
			return
		}
		runtime.Gosched()
	}
}

// Await waits for another part of a task. It returns true when ready returns true, or false when
// stopped returns true. The other part is seldom late. If it is late, its thread may need the
// processor of the waiting goroutine. So after many polls Await yields, and finally sleeps between
// polls. It calls stopped only after many polls.
func Await(ready, stopped func() bool) bool {
	const spin, yield = 1 << 14, 1 << 14
	for polls := 0; !ready(); polls++ {
		switch {
		case polls < spin:
		case stopped():
			return false
		case polls < spin+yield:
			runtime.Gosched()
		default:
			time.Sleep(20 * time.Microsecond)
		}
	}
	return true
}

// watch calls ready up to n times and reports whether it returned true.
func watch(ready func() bool, n int) bool {
	for range n {
		if ready() {
			return true
		}
	}
	return false
}

func (c *crew) leave(p *Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.closed = true
	c.offers = slices.DeleteFunc(c.offers, func(o *offer) bool { return o.pool == p })
	if !p.open {
		return
	}
	p.open = false
	if c.pools--; c.pools == 0 {
		c.wake.Broadcast()
	}
}

// Most returns the number of goroutines for a task that may use at most n. If n is 0, there is no
// bound.
func Most(n int) int {
	if procs := Procs(); n == 0 || procs < n {
		return procs
	}
	return n
}

// Procs returns the largest number of goroutines of any task. This is GOMAXPROCS, read at most
// ProcsAge ago. The value is cached because runtime.GOMAXPROCS takes the lock of the scheduler.
// While goroutines start and end, waiting for this lock takes longer than a small task.
func Procs() int {
	if n := procs.fixed.Load(); n > 0 {
		return int(n)
	}
	now := int64(time.Since(started))
	if n := procs.n.Load(); n > 0 && now < procs.until.Load() {
		return int(n)
	}
	n := runtime.GOMAXPROCS(0)
	procs.n.Store(int64(n))
	procs.until.Store(now + int64(ProcsAge))
	return n
}

// Fix makes Procs return n. A program calls it before it gives the Go runtime more processors than
// tasks may use.
func Fix(n int) { procs.fixed.Store(int64(n)) }

// ProcsAge is the maximum age of the result of Procs.
const ProcsAge = time.Millisecond

// procs caches GOMAXPROCS for Procs.
var (
	started = time.Now()
	procs   struct{ n, until, fixed atomic.Int64 } // until: time since started
)
