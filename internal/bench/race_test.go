package bench

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
)

// One-time work of a kernel, such as compilation, is not in a race's times, in any order of
// kernels: they make profiles.
func TestRaceChargesNoCompilation(t *testing.T) {
	const compiling = 300 * time.Millisecond
	b := simd.New()
	defer b.Close()
	d := dispatch.New(b)
	for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		var kernels []flashkit.Kernel
		for _, k := range b.Kernels() {
			if k.Pass != pass || k.Name != "simd/fwd_generic" && k.Name != "simd/bwd_generic" {
				continue
			}
			for i, cost := range []time.Duration{time.Microsecond, 2 * time.Microsecond, 3 * time.Microsecond} {
				kernels = append(kernels, k)
				own, once := &kernels[i], new(sync.Once)
				own.Cost = func(*flashkit.Call) time.Duration { return cost }
				own.Run = func(ctx context.Context, c *flashkit.Call) error {
					once.Do(func() { time.Sleep(compiling) })
					return k.Run(ctx, c)
				}
			}
		}
		p, err := flashkit.ParseProblem("b1-h1-g1-n8-m8-d8-f32")
		require.NoError(t, err)
		data, err := input.NewMaker(d, 1).Make(t.Context(), p, true)
		require.NoError(t, err)
		r := &race{dispatch: d, kernels: kernels, slice: time.Millisecond, rounds: 2, order: rand.New(rand.NewPCG(1, 1))}
		list, err := r.run(t.Context(), data, pass)
		require.NoError(t, err)
		require.Len(t, list, 3)
		for i, x := range list {
			require.NoError(t, x.err)
			require.Less(t, slices.Min(x.times), compiling, "kernel %d", i)
		}
	}
}
