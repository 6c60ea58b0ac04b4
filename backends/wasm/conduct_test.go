package wasm

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// After the first call, memory does not grow with calls, and allocations per call do not grow with
// the problem.
func TestAllocations(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector sync.Pool drops objects at random")
	}
	b := newBackend(t, compiler)
	for _, name := range []string{"b1-h4-g2-n128-m128-d64-f32-causal", "b1-h8-g2-n600-m600-d64-f16-causal"} {
		for _, k := range b.Kernels() {
			c := newCall(within(&k, problem(t, name)))
			run := func() { require.NoError(t, c.run(t.Context(), k)) }
			run()
			const limit = 16 // allocations: a goroutine and its closure for each worker, wazero's call
			runs := 5
			if testing.Short() {
				runs = 2
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range runs {
				run()
			}
			runtime.ReadMemStats(&after)
			require.LessOrEqual(t, (after.Mallocs-before.Mallocs)/uint64(runs), uint64(limit*cap(b.box.slots)), "%s %s", k.Name, name)
			require.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/uint64(runs), uint64(16<<10*cap(b.box.slots)), "%s %s", k.Name, name)
		}
	}
	require.LessOrEqual(t, len(b.box.idle), cap(b.box.slots))
}

// A canceled call returns within two calls of the module, also while it waits for an
// instance. Afterwards the backend is usable at once.
func TestCancelMidway(t *testing.T) {
	b := newBackend(t, compiler)
	goroutines, times := runtime.NumGoroutine(), 7
	if testing.Short() {
		times = 3
	}
	for _, k := range b.Kernels() {
		c, whole := longCall(t, k)
		var late []time.Duration
		for tries := 0; len(late) < times; tries++ {
			require.Less(t, tries, 100, "%s ends before it is canceled", k.Name)
			ctx, cancel := context.WithCancel(t.Context())
			var canceled time.Time
			timer := time.AfterFunc(whole/4, func() { canceled = time.Now(); cancel() })
			start := time.Now()
			err := c.run(ctx, k)
			if timer.Stop(); err == nil {
				cancel()
				whole = time.Since(start) // the machine is less busy than it was
				continue
			}
			require.ErrorIs(t, err, context.Canceled, k.Name)
			late = append(late, time.Since(canceled))
		}
		slices.Sort(late)
		t.Log(k.Name, late[len(late)/2], "of", whole)
		require.Less(t, late[0], whole/4, k.Name) // a larger minimum means that no call stopped early
		small := newCall(problem(t, "b1-h1-g1-n5-m5-d8-f32"))
		require.NoError(t, small.run(t.Context(), k))
	}
	settle(t, goroutines)
}

// longCall returns a call that makes many module calls, and the call's time on this machine. This
// time is far longer than a run of the garbage collector.
func longCall(t *testing.T, k flashkit.Kernel) (c *call, whole time.Duration) {
	require.NoError(t, newCall(problem(t, "b1-h1-g1-n5-m5-d8-f32")).run(t.Context(), k)) // compiles
	for heads := 1; whole < 200*time.Millisecond; heads *= 2 {
		p := within(&k, problem(t, "b1-h1-g1-n1024-m1024-d64-f32"))
		p.Heads, p.KVHeads = heads, heads
		c = newCall(p)
		start := time.Now()
		require.NoError(t, c.run(t.Context(), k))
		whole = time.Since(start)
	}
	return c, whole
}

func TestCancelWhileWaiting(t *testing.T) {
	b := newBackend(t, compiler)
	for range cap(b.box.slots) {
		b.box.slots <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, newCall(problem(t, "b1-h1-g1-n5-m5-d8-f32")).run(ctx, b.Kernels()[0]), context.DeadlineExceeded)
	for range cap(b.box.slots) {
		<-b.box.slots
	}
}

// The garbage collector must stop every goroutine, but cannot stop a goroutine
// that is in the module. So calls of the module are short.
func TestCollectorIsNotHeldUp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	b := newBackend(t, compiler)
	for _, k := range b.Kernels() {
		c, whole := longCall(t, k)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for c.run(ctx, k) == nil {
			}
		}()
		var took []time.Duration
		for range 50 {
			start := time.Now()
			runtime.GC()
			took = append(took, time.Since(start))
		}
		cancel()
		<-done
		slices.Sort(took)
		t.Log(k.Name, "median", took[25], "of", whole)
		require.Less(t, took[5], whole/4, k.Name) // some collections need not wait for a call to end, even on a busy machine
	}
}

// The first call compiles and instantiates.
func BenchmarkFirstCall(b *testing.B) {
	c := newCall(problem(b, "b1-h1-g1-n5-m5-d8-f32"))
	for b.Loop() {
		x, err := New(b.Context())
		require.NoError(b, err)
		require.NoError(b, c.run(b.Context(), x.Kernels()[0]))
		require.NoError(b, x.Close())
	}
}
