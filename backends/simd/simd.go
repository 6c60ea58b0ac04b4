// Package simd computes attention on the CPU. Goroutines work on tiles of the
// problem that stay in registers and cache. The portable kernels support every
// problem on every platform that Go compiles for.
package simd

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Backend runs attention on the CPU. It is safe for concurrent use. A call
// uses up to GOMAXPROCS goroutines: the caller's, and helpers that live as long as
// the backend and sleep between calls.
type Backend struct {
	last atomic.Pointer[job] // with the workspace of the last call, so that the next one allocates nothing
	jobs sync.Pool           // *job, of calls that ran at the same time
	crew *crew
}

// New returns the CPU backend. It is available on every machine.
func New() *Backend {
	b := &Backend{jobs: sync.Pool{New: func() any { return new(job) }}, crew: newCrew()}
	runtime.AddCleanup(b, (*crew).close, b.crew)
	return b
}

// Name returns "simd".
func (b *Backend) Name() string { return "simd" }

// Kernels returns the backend's kernels, on every platform the same ones.
func (b *Backend) Kernels() []flashkit.Kernel {
	list := append(b.vectorKernels(),
		kernel("fwd_generic", flashkit.FeatureShift, fwdGenericCost, fwdGenericMemory, b.fwdGeneric),
		kernel("bwd_generic", flashkit.FeatureShift, bwdGenericCost, bwdGenericMemory, b.bwdGeneric),
	)
	for i := range list {
		setAbout(&list[i])
	}
	return list
}

// kernel returns the kernel of that name, whose cost and memory follow from the
// problem alone.
func kernel(name string, takes flashkit.Feature, cost func(flashkit.Problem) time.Duration, memory func(flashkit.Problem) float64, run func(context.Context, *flashkit.Call) error) flashkit.Kernel {
	pass := flashkit.PassForward
	if strings.HasPrefix(name, "bwd_") {
		pass = flashkit.PassBackward
	}
	return flashkit.Kernel{
		Name: "simd/" + name, Pass: pass, Takes: takes,
		Cost:  func(c *flashkit.Call) time.Duration { return cost(c.Problem) },
		Needs: func(c *flashkit.Call) flashkit.Memory { return flashkit.Memory{Host: memory(c.Problem)} },
		Run:   run,
	}
}

// Close lets the helpers end. Calls in progress finish; a later call runs on the
// caller's goroutine alone. A backend that is collected needs no Close.
func (b *Backend) Close() error {
	b.crew.close()
	b.last.Store(nil)
	return nil
}
