package conformance_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/conformance"
)

// The results come in the order of one processor, whatever else runs meanwhile.
func TestResultsInOrder(t *testing.T) {
	kernels := newMutant(t, trapNames()[0]).Kernels()
	o := conformance.Options{Case: "causal_*"}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var want, got []conformance.Result
	for r := range conformance.Results(t.Context(), kernels, o) {
		want = append(want, r)
	}
	require.Len(t, want, o.Count(kernels))
	runtime.GOMAXPROCS(8)
	for r := range conformance.Results(t.Context(), kernels, o) {
		got = append(got, r)
	}
	require.Len(t, got, len(want))
	for i, r := range want {
		require.Equal(t, [2]string{r.Kernel, r.Case}, [2]string{got[i].Kernel, got[i].Case})
		require.Equal(t, r.Err == nil, got[i].Err == nil)
	}
}

// Who stops early, or is stopped, leaves nothing running.
func TestResultsStop(t *testing.T) {
	b := newMutant(t, trapNames()[0]) // has no goroutines of its own
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := func(stop func() bool) (n int) {
		for range conformance.Results(ctx, b.Kernels(), conformance.Options{}) {
			if n++; n == 10 && stop() {
				break
			}
		}
		return n
	}
	before := runtime.NumGoroutine()
	over := func() bool {
		for range 1000 { // the last one may be on its way out
			if runtime.NumGoroutine() <= before {
				return true
			}
			time.Sleep(time.Millisecond)
		}
		return false
	}
	require.Equal(t, 10, seen(func() bool { return true }))
	require.True(t, over())
	require.Equal(t, 10, seen(func() bool { cancel(); return false }))
	require.True(t, over())
}
