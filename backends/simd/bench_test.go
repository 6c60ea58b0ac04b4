package simd_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// BenchmarkKernels measures every kernel. Run it also with GOMAXPROCS=1 in the environment to see
// how speed scales with the number of cores. Compare times with and without a causal mask to see
// the gain from skipped tiles. Do not use -cpu 1,2: the testing package measures the first case
// with a wrong number of cores. FLASHKIT_BENCH replaces the problems by others. It lists names of
// problems, separated by commas.
func BenchmarkKernels(b *testing.B) {
	eachKernel(b, func(b *testing.B, c *call, k flashkit.Kernel) {
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, c.run(b.Context(), k))
		}
		b.ReportMetric(c.p.FLOPs(k.Pass)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	})
}

// eachKernel runs a benchmark for every problem and kernel.
func eachKernel(b *testing.B, f func(b *testing.B, c *call, k flashkit.Kernel)) {
	names := []string{
		"b1-h8-g8-n1024-m1024-d64-f32", "b1-h8-g8-n1024-m1024-d64-f32-causal",
		"b1-h8-g8-n1024-m1024-d128-f32", "b1-h8-g8-n1024-m1024-d128-f32-causal",
		"b1-h8-g8-n1024-m1024-d64-bf16", "b1-h8-g8-n1024-m1024-d128-bf16-causal",
	}
	if list := os.Getenv("FLASHKIT_BENCH"); list != "" {
		names = strings.Split(list, ",")
	}
	for _, name := range names {
		c := newCall(b, name)
		for _, k := range c.kernels() {
			b.Run(k.Name+"/"+name, func(b *testing.B) { f(b, c, k) })
		}
	}
}

// BenchmarkTileCosts measures the fixed cost of a tile of query rows, in units of the time of one
// key. From the times of calls with few and with many keys it computes intercept divided by slope.
// Tests that simulate schedules use this cost. Run the benchmark with GOMAXPROCS=1.
func BenchmarkTileCosts(b *testing.B) {
	for _, x := range []struct {
		kernel    string
		n         int // query rows
		few, many int // keys
	}{
		{"simd/fwd_avx512", 2048, 192, 1536}, {"simd/fwd_avx2", 2048, 192, 1536},
		{"simd/bwd_avx512", 2048, 64, 128}, {"simd/bwd_avx2", 2048, 64, 128},
	} {
		b.Run(x.kernel, func(b *testing.B) {
			took := [2]time.Duration{time.Hour, time.Hour} // the least of all calls
			calls := [2]*call{newCall(b, fmt.Sprintf("b1-h1-g1-n%d-m%d-d64-f32", x.n, x.few)), newCall(b, fmt.Sprintf("b1-h1-g1-n%d-m%d-d64-f32", x.n, x.many))}
			for b.Loop() {
				for i, c := range calls {
					for _, k := range c.kernels() {
						if k.Name == x.kernel {
							start := time.Now()
							require.NoError(b, c.run(b.Context(), k))
							took[i] = min(took[i], time.Since(start))
						}
					}
				}
			}
			slope := float64(took[1]-took[0]) / float64(x.many-x.few)
			b.ReportMetric(float64(took[0])/slope-float64(x.few), "keys")
		})
	}
}

// BenchmarkCancel measures the time from the cancellation of a call's context to the end of the
// call.
func BenchmarkCancel(b *testing.B) {
	for _, name := range []string{"b1-h8-g8-n4096-m4096-d128-f32", "b1-h2-g2-n2048-m2048-d512-f32-causal"} {
		c := newCall(b, name)
		for _, k := range c.kernels() {
			b.Run(k.Name+"/"+name, func(b *testing.B) {
				var delays []time.Duration
				for b.Loop() {
					ctx, cancel := context.WithCancel(b.Context())
					var at time.Time
					timer := time.AfterFunc(2*time.Millisecond, func() {
						at = time.Now()
						cancel()
					})
					require.ErrorIs(b, c.run(ctx, k), context.Canceled)
					delays = append(delays, time.Since(at))
					timer.Stop()
				}
				slices.Sort(delays)
				b.ReportMetric(float64(delays[len(delays)/2].Microseconds()), "median-µs")
				b.ReportMetric(float64(delays[len(delays)*99/100].Microseconds()), "p99-µs")
			})
		}
	}
}
