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

// A Backend runs attention on the CPU. It is safe for concurrent use. A call uses up to GOMAXPROCS
// goroutines, or the limit of Workers or Args.Workers. These are the caller's goroutine and
// helpers. All backends of the process share the helpers, which sleep between calls.
type Backend struct {
	last atomic.Pointer[job] // job of the last call, whose workspace the next call reuses
	jobs sync.Pool           // *job, of concurrent calls
	pool *pool.Pool

	poisoned atomic.Bool // tests: see Poison
}

// An Option configures the backend that New returns.
type Option func(*pool.Pool)

// Workers limits the goroutines of a call, including the caller's, to n. It limits the helpers of
// all calls together to n-1. If n is 0, the limit is GOMAXPROCS. With a negative n every call
// returns a *flashkit.ProblemError. Results do not depend on n.
func Workers(n int) Option { return func(c *pool.Pool) { c.SetLimit(n) } }

// New returns the CPU backend, with the given options. It is available on every machine.
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

// Close stops the helpers that no other backend needs. Calls in progress finish; later calls run on
// the caller's goroutine alone. A backend that the garbage collector frees needs no Close.
func (b *Backend) Close() error {
	b.pool.Close()
	b.last.Store(nil)
	return nil
}

// Poison fills the workspace of all later calls with NaN, at the start of each call and item.
// Package conformance uses Poison to find kernels that read stale workspace: see
// conformance.Poisoner. Results do not change, but calls get slower.
func (b *Backend) Poison() { b.poisoned.Store(true) }

// BatchInvariant returns true: the results of a sequence have the same bits alone and in any batch.
// See conformance.BatchInvariant.
func (b *Backend) BatchInvariant() bool { return true }
