//go:build !noasm && !purego

package simd

import (
	"sync"
	"testing"
)

// BenchmarkLimits measures the FMA peak on as many cores as GOMAXPROCS, so that
// the kernels' rates can be given as a fraction of it.
func BenchmarkLimits(b *testing.B) {
	b.Run("fma=avx512", func(b *testing.B) {
		if reason := avx512.missing(); reason != "" {
			b.Skip(reason)
		}
		const rounds = 1 << 20 // about a millisecond or more
		for b.Loop() {
			var wait sync.WaitGroup
			for range workers() {
				wait.Add(1)
				go func() {
					defer wait.Done()
					fmaPeakAVX512(rounds)
				}()
			}
			wait.Wait()
		}
		b.ReportMetric(512*rounds*float64(workers())*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	})
}
