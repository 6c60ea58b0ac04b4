//go:build !purego

package simd_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// BenchmarkFractions measures the kernels and, right after each call, the processor's peak rate at
// its current clock. It reports medians, and uses the problems of BenchmarkKernels.
func BenchmarkFractions(b *testing.B) {
	eachKernel(b, func(b *testing.B, c *call, k flashkit.Kernel) {
		var rates, peaks, fractions []float64
		for b.Loop() {
			calls, start := 0.0, time.Now()
			for took := time.Duration(0); took < 2*time.Millisecond; took = time.Since(start) {
				require.NoError(b, c.run(b.Context(), k))
				calls++
			}
			rate, peak := c.p.FLOPs(k.Pass)*calls/time.Since(start).Seconds(), simd.PeakNow(k.Name)
			rates, peaks, fractions = append(rates, rate/1e9), append(peaks, peak/1e9), append(fractions, rate/peak)
		}
		b.ReportMetric(0, "ns/op") // of two things together
		b.ReportMetric(median(rates), "GFLOP/s")
		b.ReportMetric(median(peaks), "peak-GFLOP/s")
		b.ReportMetric(median(fractions), "of-peak")
	})
}

// BenchmarkCores measures the speed of all cores relative to one core, for kernels and for
// multiply-adds alone. Each round measures all four speeds. The benchmark reports medians over
// rounds, and uses the problems of BenchmarkKernels.
func BenchmarkCores(b *testing.B) {
	all := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(all)
	eachKernel(b, func(b *testing.B, c *call, k flashkit.Kernel) {
		call := func() { require.NoError(b, c.run(b.Context(), k)) }
		var ones, times, limits []float64
		for b.Loop() {
			one, many := onOneAndAll(all, func() float64 { return perSecond(call) })
			oneAlone, manyAlone := onOneAndAll(all, simd.MultiplyAdds)
			ones, times, limits = append(ones, one), append(times, many/one), append(limits, manyAlone/oneAlone)
		}
		b.ReportMetric(0, "ns/op") // of many things together
		b.ReportMetric(c.p.FLOPs(k.Pass)*median(ones)/1e9, "GFLOP/s-of-one")
		b.ReportMetric(median(times), "times-one")
		b.ReportMetric(median(limits), "limit-times-one")
	})
}

func onOneAndAll(all int, rate func() float64) (one, many float64) {
	runtime.GOMAXPROCS(1)
	one = rate()
	runtime.GOMAXPROCS(all)
	return one, rate()
}

// perSecond returns the calls of f per second. It calls f once, then measures for a quarter of a
// second.
func perSecond(f func()) float64 {
	f()
	calls, start := 0.0, time.Now()
	for time.Since(start) < time.Second/4 {
		f()
		calls++
	}
	return calls / time.Since(start).Seconds()
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
