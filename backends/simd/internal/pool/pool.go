// Package pool runs the calls of the CPU backend on goroutines, item by item. Each goroutine has a
// workspace that stays from call to call.
package pool

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// A Pool is a backend's share of the process's helper goroutines. All calls of the backend together
// use at most GOMAXPROCS - 1 helpers, or one less than the limit if the Pool has a limit. A Pool
// must not refer to its backend: the backend's cleanup holds the Pool, so the backend would never
// be collected.
type Pool struct {
	workers.Pool
}

// Wrap replaces the functions of a kernel by functions that respect the limit of goroutines. Small
// calls run on one goroutine. Cost ignores this rule. Otherwise a call just large enough for
// helpers would have a shorter prediction than a smaller call.
func (c *Pool) Wrap(k *flashkit.Kernel) {
	run, cost, needs, size := k.Run, k.Cost, k.Needs, &sizing{cost: k.Cost}
	if c.Limit() < 0 {
		err := &flashkit.ProblemError{Field: "simd.Workers", Value: strconv.Itoa(c.Limit()), Reason: "must be at least 1, or 0 for GOMAXPROCS"}
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
	if needs == nil {
		return // this program cannot run the kernel
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

// allow lowers a call's workers to the limit.
func (c *Pool) allow(call *flashkit.Call) {
	if n := c.Limit(); n > 0 && (call.Workers == 0 || call.Workers > n) {
		call.Workers = n
	}
}

// copied returns a copy of a call. Cost or Needs may change the copy while the caller uses the
// call. Pass the copy to forget in the end.
func copied(call *flashkit.Call) *flashkit.Call {
	x := copies.Get().(*flashkit.Call)
	*x = *call
	return x
}

func forget(x *flashkit.Call) {
	*x = flashkit.Call{}
	copies.Put(x)
}

// copies keeps the copies, so that Cost and Needs allocate nothing.
var copies = sync.Pool{New: func() any { return new(flashkit.Call) }}

// smallTime is the longest predicted time of a small call. Waking a helper may take the same
// time, and the helper takes a processor from other work.
const smallTime = 12 * time.Microsecond

// A sizing tells which calls of a kernel are small. It caches the last prediction, because a
// prediction takes longer than a comparison of two problems.
type sizing struct {
	cost func(*flashkit.Call) time.Duration

	mu      sync.Mutex
	problem flashkit.Problem
	traits  flashkit.Traits
	small   bool
}

// isSmall reports whether a call may have helpers and its predicted time on one goroutine is
// at most smallTime.
func (s *sizing) isSmall(c *flashkit.Call) bool {
	if WorkersOf(c) == 1 {
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

// WorkersOf returns the number of goroutines that the call may use.
func WorkersOf(c *flashkit.Call) int { return workers.Most(c.Workers) }
