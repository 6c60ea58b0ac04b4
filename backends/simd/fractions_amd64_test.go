//go:build !noasm && !purego

package simd_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// BenchmarkFractions measures the kernels, and right after each call what the processor
// does at most at the clock that it then has: medians. Its problems are those of
// BenchmarkKernels.
func BenchmarkFractions(b *testing.B) {
	eachKernel(b, func(b *testing.B, c *call, k flashkit.Kernel) {
		var rates, peaks, fractions []float64
		for b.Loop() {
			calls, start := 0.0, time.Now()
			for took := time.Duration(0); took < 2*time.Millisecond; took = time.Since(start) {
				require.NoError(b, c.run(b.Context(), k))
				calls++
			}
			rate, peak := c.p.FLOPs(k.Pass())*calls/time.Since(start).Seconds(), simd.PeakNow(k.Name)
			rates, peaks, fractions = append(rates, rate/1e9), append(peaks, peak/1e9), append(fractions, rate/peak)
		}
		b.ReportMetric(0, "ns/op") // of two things together
		b.ReportMetric(median(rates), "GFLOP/s")
		b.ReportMetric(median(peaks), "peak-GFLOP/s")
		b.ReportMetric(median(fractions), "of-peak")
	})
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
