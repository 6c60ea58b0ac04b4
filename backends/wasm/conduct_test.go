package wasm

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// After the first call, memory does not grow with calls, nor what a call
// allocates with the problem.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector sync.Pool drops objects at random")
	}
	b := newBackend(t, compiler)
	for _, name := range []string{"b1-h4-g2-n128-m128-d64-f32-causal", "b1-h8-g2-n600-m600-d64-f16-causal"} {
		c := newCall(problem(t, name))
		for _, k := range b.Kernels() {
			run := func() { require.NoError(t, c.run(t.Context(), k)) }
			run()
			const runs, limit = 5, 16 // a goroutine and its closure for each worker, wazero's call
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range runs {
				run()
			}
			runtime.ReadMemStats(&after)
			require.LessOrEqual(t, (after.Mallocs-before.Mallocs)/runs, uint64(limit*cap(b.box.slots)), "%s %s", k.Name, name)
			require.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/runs, uint64(16<<10*cap(b.box.slots)), "%s %s", k.Name, name)
		}
	}
	require.LessOrEqual(t, len(b.box.idle), cap(b.box.slots))
}

// A canceled context returns within two calls of the module, also while it waits
// for an instance, and the backend is usable at once.
func TestCancelMidway(t *testing.T) {
	b := newBackend(t, compiler)
	goroutines := runtime.NumGoroutine()
	c := newCall(problem(t, "b1-h4-g4-n2048-m2048-d64-f32"))
	for _, k := range b.Kernels() {
		var late []time.Duration
		for range 9 {
			ctx, cancel := context.WithCancel(t.Context())
			var canceled time.Time
			time.AfterFunc(20*time.Millisecond, func() { canceled = time.Now(); cancel() })
			require.ErrorIs(t, c.run(ctx, k), context.Canceled, k.Name)
			late = append(late, time.Since(canceled))
		}
		slices.Sort(late)
		t.Log(k.Name, late[len(late)/2])
		require.Less(t, late[len(late)/2], 20*time.Millisecond, k.Name) // the machine may be busy
		small := newCall(problem(t, "b1-h1-g1-n5-m5-d8-f32"))
		require.NoError(t, small.run(t.Context(), k))
	}
	settle(t, goroutines)
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

// The garbage collector must stop every goroutine, and cannot while one is in
// the module. Calls are short for its sake.
func TestCollectorIsNotHeldUp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	b := newBackend(t, compiler)
	c := newCall(problem(t, "b1-h4-g4-n1024-m1024-d64-f32"))
	for _, k := range b.Kernels() {
		require.NoError(t, newCall(problem(t, "b1-h1-g1-n5-m5-d8-f32")).run(t.Context(), k))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for c.run(ctx, k) == nil {
			}
		}()
		var took []time.Duration
		for range 100 {
			start := time.Now()
			runtime.GC()
			took = append(took, time.Since(start))
		}
		cancel()
		<-done
		slices.Sort(took)
		t.Log(k.Name, "median", took[50], "p99", took[98])
		require.Less(t, took[50], 50*time.Millisecond, k.Name) // the machine may be busy
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
