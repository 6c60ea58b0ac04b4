//go:build !noasm && !purego

package simd

import (
	"sync"
	"testing"
)

// BenchmarkLimits measures the peak of multiply-adds, in float32 and of bf16 pairs,
// on as many cores as GOMAXPROCS, so that the kernels' rates can be given as a
// fraction of it.
func BenchmarkLimits(b *testing.B) {
	for _, limit := range []struct {
		name  string
		tier  tier
		loop  func(n int)
		flops float64 // of a round
	}{
		{"fma=avx512", avx512, fmaPeakAVX512, 512},
		{"fma=avx2", avx2, fmaPeakAVX2, 192},
		{"bf16dot=avx512bf16", avx512bf16, dotPeakAVX512BF16, 1024},
	} {
		b.Run(limit.name, func(b *testing.B) {
			if reason := limit.tier.missing(); reason != "" {
				b.Skip(reason)
			}
			const rounds = 1 << 20 // about a millisecond or more
			for b.Loop() {
				var wait sync.WaitGroup
				for range workers() {
					wait.Add(1)
					go func() {
						defer wait.Done()
						limit.loop(rounds)
					}()
				}
				wait.Wait()
			}
			b.ReportMetric(limit.flops*rounds*float64(workers())*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
