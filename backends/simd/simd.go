// Package simd computes attention on the CPU. Goroutines work on tiles of the
// problem that stay in registers and cache. The portable kernels support every
// problem on every platform that Go compiles for.
package simd

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// A Backend runs attention on the CPU. It is safe for concurrent use. A call
// uses up to GOMAXPROCS goroutines, or fewer where Workers or Args.Workers says so: the
// caller's, and helpers, which all backends of the process share and which sleep between calls.
type Backend struct {
	last atomic.Pointer[job] // with the workspace of the last call, so that the next one allocates nothing
	jobs sync.Pool           // *job, of calls that ran at the same time
	pool *pool.Pool

	poisoned atomic.Bool // tests: see Poison
}

// An Option changes what New returns.
type Option func(*pool.Pool)

// Workers bounds the goroutines of a call, the caller's among them, and the helpers of
// all calls together to one less. 0 is no bound but GOMAXPROCS. With a negative number
// every call is a *flashkit.ProblemError. Results do not depend on it.
func Workers(n int) Option { return func(c *pool.Pool) { c.SetLimit(n) } }

// New returns the CPU backend. It is available on every machine.
func New(opts ...Option) *Backend {
	b := &Backend{jobs: sync.Pool{New: func() any { return new(job) }}, pool: new(pool.Pool)}
	for _, set := range opts {
		set(b.pool)
	}
	runtime.AddCleanup(b, (*pool.Pool).Close, b.pool)
	return b
}

// Name returns "simd".
func (b *Backend) Name() string { return "simd" }

// Close lets the helpers end that no other backend needs. Calls in progress finish; a later call runs on the
// caller's goroutine alone. A backend that is collected needs no Close.
func (b *Backend) Close() error {
	b.pool.Close()
	b.last.Store(nil)
	return nil
}

// Poison lets all later calls find NaN in their workspace, whenever a call or an item
// begins. Package conformance asks for it, see conformance.Poisoner: a kernel that reads what
// an earlier one left would else be right by chance. Results keep their bits, and calls
// get slower; a program has no use for it.
func (b *Backend) Poison() { b.poisoned.Store(true) }

// BatchInvariant says that a sequence has the same bits alone as in any batch: see
// conformance.BatchInvariant.
func (b *Backend) BatchInvariant() bool { return true }
