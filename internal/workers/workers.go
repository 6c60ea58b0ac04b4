// Package workers lends goroutines to calculations. A Pool is what one user of them holds,
// such as a backend; the goroutines themselves are those of the process, which all pools
// share.
//
// They are the one thing here that is not held by a value, for what they stand for is not
// either: processors belong to the process. With goroutines of its own, each user's would
// wait for the next task where the others' could work. They start when the first pool asks
// for help and end when the last one that did is closed.
package workers

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Task is work that the caller of Run and its helpers share, each by one call of Work with
// a slot of its own: 0 for the caller, 1 and up to the number of helpers for these. Any of
// the helpers may come late or not at all.
type Task interface {
	Work(slot int)
}

// A Pool asks for help. The zero value has no limit. It is safe for concurrent use, but for
// SetLimit.
type Pool struct {
	limit int

	asked  atomic.Int64
	open   bool // it has asked for help and is not closed; of process.mu, as what follows
	closed bool
	busy   int // helpers in its tasks
}

// SetLimit bounds the helpers of all tasks of the pool together to one less than n, so that
// one task has n goroutines at most; 0 is no limit but GOMAXPROCS. It must come before Run.
func (p *Pool) SetLimit(n int) { p.limit = n }

// Limit returns the limit, 0 for none.
func (p *Pool) Limit() int { return p.limit }

// Asked returns how many tasks asked for help.
func (p *Pool) Asked() int64 { return p.asked.Load() }

// Run works on t with up to the given number of helpers, and returns when all have left it.
// The caller works, too, so a task never depends on others having time for it.
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

// Close lets the goroutines end, if no other pool may need them. Tasks in progress finish,
// and later ones have no help.
func (p *Pool) Close() { process.leave(p) }

// A crew is goroutines, at most GOMAXPROCS - 1 when they are started, whatever the number of
// tasks. They sleep between tasks.
type crew struct {
	mu     sync.Mutex
	wake   sync.Cond    // signaled when there is an offer
	offers []*offer     // with slots left, the oldest first
	unused []*offer     // so that one allocates nothing
	size   int          // goroutines
	idle   int          // of them, asleep
	pools  int          // that are open
	asked  atomic.Int64 // how often there was an offer
}

// process is the crew of all pools.
var process = newCrew()

func newCrew() *crew {
	c := new(crew)
	c.wake.L = &c.mu
	return c
}

// An offer is a task that has room for helpers.
type offer struct {
	task    Task
	pool    *Pool
	slots   int            // for helpers that have not come; of mu
	helpers sync.WaitGroup // that have
	present atomic.Int64   // how many of these are still at work
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

// withdraw waits until the helpers of o have left it.
func (c *crew) withdraw(o *offer) {
	if o == nil {
		return
	}
	c.mu.Lock()
	c.remove(o)
	c.mu.Unlock()
	// They leave soon, and a caller that is locked to its thread, as one that C called
	// is, changes threads twice for each yield: first wait without any.
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

// remove takes o off the offers. The caller holds mu.
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

// spin waits a little for the next task or phase, which often follows at once,
// and reports whether there is one, or none will come: waking a sleeping
// goroutine takes longer than a small problem. Others may have the processor
// meanwhile. The caller holds mu.
func (c *crew) spin() bool {
	seen := c.asked.Load()
	c.mu.Unlock()
	poll(func() bool { return c.asked.Load() != seen })
	c.mu.Lock()
	return c.next() != nil || c.pools == 0
}

// poll waits until ready, but not for long. It seldom yields: with many helpers the
// lock of the runtime's scheduler is what a small task would wait for.
func poll(ready func() bool) {
	for range 20 {
		if watch(ready, 500) {
			return
		}
		runtime.Gosched()
	}
}

// Await returns true when ready, or false when stopped, as a part of a task waits for another,
// which is rarely far behind. If it is, its thread may need the very processor that this one
// would keep: then it yields, and at last sleeps in between. Whether it is stopped it asks
// only after a while.
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

// watch asks up to n times whether it is ready.
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

// Most returns how many goroutines a task may have whose user wants n at most, 0 for no
// such bound.
func Most(n int) int {
	if procs := Procs(); n == 0 || procs < n {
		return procs
	}
	return n
}

// Procs returns how many goroutines any task may have: GOMAXPROCS, not older than
// ProcsAge. The runtime answers under the lock of its scheduler, which takes longer
// than a small task while other goroutines come and go.
func Procs() int {
	now := int64(time.Since(started))
	if n := procs.n.Load(); n > 0 && now < procs.until.Load() {
		return int(n)
	}
	n := runtime.GOMAXPROCS(0)
	procs.n.Store(int64(n))
	procs.until.Store(now + int64(ProcsAge))
	return n
}

// ProcsAge is how old what Procs returns may be.
const ProcsAge = time.Millisecond

// procs is GOMAXPROCS as last seen, which like it belongs to the process.
var (
	started = time.Now()
	procs   struct{ n, until atomic.Int64 } // until, since started
)
