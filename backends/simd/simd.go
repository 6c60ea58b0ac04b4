// Package simd computes attention on the CPU: goroutines over tiles of the
// problem, each tile in registers and cache. Its portable kernels take every
// problem on every platform that Go compiles to.
package simd

import (
	"runtime"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Backend runs attention on the CPU. It is safe for concurrent use. A call
// uses up to GOMAXPROCS goroutines and leaves none behind.
type Backend struct {
	jobs sync.Pool // *job, with the workspace of earlier calls
}

// New returns the CPU backend. It is available on every machine.
func New() *Backend {
	return &Backend{jobs: sync.Pool{New: func() any { return new(job) }}}
}

// Name returns "simd".
func (b *Backend) Name() string { return "simd" }

// Kernels returns the backend's kernels.
func (b *Backend) Kernels() []flashkit.Kernel {
	return append(b.vectorKernels(),
		flashkit.Kernel{Name: "simd/fwd_generic", Fits: fitsAll, Cost: fwdGenericCost, RunForward: b.fwdGeneric},
		flashkit.Kernel{Name: "simd/bwd_generic", Fits: fitsAll, Cost: bwdGenericCost, RunBackward: b.bwdGeneric},
	)
}

// Close releases nothing: workspace belongs to the garbage collector.
func (b *Backend) Close() error { return nil }

func fitsAll(flashkit.Problem) string { return "" }

// genericRate is the portable kernels' multiply-adds on one core, in FLOP/s,
// to the nearest power of two on current servers. It only has to rank kernels.
const genericRate = 8e9

// callOverhead is what a call costs before any arithmetic: waking a goroutine.
const callOverhead = 5 * time.Microsecond

// cost predicts the time of a call of n items at a rate for each worker.
func cost(flops, rate float64, n int) time.Duration {
	return callOverhead + time.Duration(flops/rate/float64(max(1, min(workers(), n)))*1e9)
}

// workers returns how many goroutines a call may use.
func workers() int { return runtime.GOMAXPROCS(0) }
