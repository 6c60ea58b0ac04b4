package simd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// moreProcs sets GOMAXPROCS for a test.
func moreProcs(t *testing.T, n int) {
	before := setProcs(n)
	t.Cleanup(func() { setProcs(before) })
}

// The limits of the backend and of the call bound the number of goroutines. Items that wait for one
// another run on all of these goroutines.
func TestWorkers(t *testing.T) {
	moreProcs(t, 5)
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1}
	for _, most := range []struct{ backend, call, want int }{
		{0, 0, 5}, {3, 0, 3}, {0, 2, 2}, {3, 2, 2}, {2, 3, 2}, {1, 0, 1}, {4, 1, 1}, {9, 0, 5}, {0, 9, 5},
	} {
		b := New(Workers(most.backend))
		var now, top, came atomic.Int64
		var highest sync.Mutex
		k := flashkit.Kernel{Name: "simd/fwd_test", Cost: func(*flashkit.Call) time.Duration { return time.Second }, Run: func(ctx context.Context, c *flashkit.Call) error {
			j := b.newJob(c)
			j.parallel(ctx, func(*job, *pool.Arena, int) {
				highest.Lock()
				top.Store(max(top.Load(), now.Add(1)))
				highest.Unlock()
				came.Add(1)
				for range 5000 {
					if came.Load() >= int64(most.want) {
						break
					}
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Millisecond) // for one too many
				now.Add(-1)
			}, pool.Phase{Items: 40})
			return b.release(ctx, j)
		}}
		b.pool.Wrap(&k)
		args := flashkit.NewArgs(p, flashkit.PassForward)
		args.Workers = most.call
		require.NoError(t, k.Compute(t.Context(), p, args))
		require.EqualValues(t, most.want, top.Load(), "%+v", most)
		require.NoError(t, b.Close())
	}
}

// If the limit of the backend or of the call is negative, every call returns an error.
func TestNegativeWorkers(t *testing.T) {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1}
	var wrong *flashkit.ProblemError
	for _, k := range New(Workers(-2)).Kernels() {
		err := k.Compute(t.Context(), p, flashkit.NewArgs(p, k.Pass))
		if k.Fits(p.Ask(k.Pass)) == "" {
			require.True(t, errors.As(err, &wrong), "%s: %v", k.Name, err)
			require.Equal(t, flashkit.ProblemError{Field: "simd.Workers", Value: "-2", Reason: "must be at least 1, or 0 for GOMAXPROCS"}, *wrong)
		}
	}
	for _, k := range New().Kernels() {
		args := flashkit.NewArgs(p, k.Pass)
		args.Workers = -1
		require.EqualError(t, k.Compute(t.Context(), p, args), "flashkit: Workers = -1: must be at least 1, or 0 for no limit")
	}
}

// A call that would end before a helper arrives requests no helper, also between large calls.
func TestSmallCallsHaveNoHelpers(t *testing.T) {
	moreProcs(t, 5)
	small := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 2, QLen: 4, KVLen: 4, Dim: 8, VDim: 8}
	large := small
	large.QLen, large.KVLen = 200, 200
	for _, name := range []string{"simd/fwd_generic", "simd/bwd_generic"} {
		b := New()
		k := b.Kernels()[slices.IndexFunc(b.Kernels(), func(k flashkit.Kernel) bool { return k.Name == name })]
		run := func(p flashkit.Problem) (asked int64) {
			args := flashkit.NewArgs(p, k.Pass)
			require.NoError(t, k.Compute(t.Context(), p, args))
			require.Zero(t, args.Workers)
			return b.pool.Asked()
		}
		require.Zero(t, run(small))
		require.Zero(t, run(small))
		require.NotZero(t, run(large))
		asked := b.pool.Asked()
		require.Equal(t, asked, run(small))
		require.Less(t, asked, run(large))
		require.NoError(t, b.Close())
	}
}
