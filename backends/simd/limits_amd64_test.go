//go:build !purego

package simd

import (
	"strings"
	"testing"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// BenchmarkLimits measures the machine's peak rates on GOMAXPROCS cores, to which the kernels'
// rates are compared. It measures multiply-adds of float32, bf16 pairs and tiles in registers, and
// exponentials of data in L1.
func BenchmarkLimits(b *testing.B) {
	const rounds = 1 << 14
	for _, isa := range []struct {
		peakLoop
		tier  tier
		lanes *laneRoutines
	}{
		{loopAVX512, avx512, &avx512Lanes},
		{loopAVX2, avx2, &avx2Lanes},
	} {
		limit(b, "fma="+isa.name, isa.tier, "GFLOP/s", isa.flops*rounds, func() { isa.run(rounds) })
		const keys, times = 64, 256
		limit(b, "exp="+isa.name, isa.tier, "Gexp/s", float64(keys*times*isa.lanes.lanes), func() {
			n := isa.lanes.lanes
			var s [keys * 32]float32
			var state [4 * 32]float32
			for range times {
				isa.lanes.expScores(&s[0], keys, &state[0], &state[n], &state[2*n], &state[3*n], 1)
			}
		})
	}
	limit(b, "tile=amxbf16", amxbf16(), "GFLOP/s", tilePeakFLOP*rounds, func() { tilePeak(rounds) })
	limit(b, "dot=avx512bf16", avx512bf16, "GFLOP/s", 1024*rounds, func() { dotPeakAVX512BF16(rounds) })
}

// limit measures f on all cores. One call of f performs the given number of operations.
func limit(b *testing.B, name string, t tier, unit string, number float64, f func()) {
	b.Run(name, func(b *testing.B) {
		if reason := t.missing(); reason != "" {
			b.Skip(reason)
		}
		for b.Loop() {
			onAll(f)
		}
		b.ReportMetric(number*chunks*float64(workers.Procs())*float64(b.N)/b.Elapsed().Seconds()/1e9, unit)
	})
}

// MultiplyAdds measures the processor's rate of float32 multiply-adds on all cores, in FLOP/s. It
// takes some 50 milliseconds.
func MultiplyAdds() float64 { return peakLoops(flashkit.Float32)[0].rate(16) }

// PeakNow measures the rate of float32 multiply-adds on all cores at their current clock, in
// FLOP/s. It uses the kernel's instruction set. A clock that was lowered under a kernel rises only
// after some hundred microseconds. Multiply-adds alone, without loads, often run at a higher clock,
// which no kernel can reach.
func PeakNow(kernel string) float64 {
	loop := peakLoops(flashkit.Float32)[0]
	if strings.HasSuffix(kernel, "avx2") {
		loop = loopAVX2
	}
	const slices, rounds = 6, 8000 // of a slice: 20 µs
	best := make(chan float64, workers.Procs())
	for range workers.Procs() {
		go func() {
			least := time.Hour // the first slice of a core may wait until other work ends
			for range slices {
				start := time.Now()
				loop.run(rounds)
				least = min(least, time.Since(start))
			}
			best <- loop.flops * rounds / least.Seconds()
		}()
	}
	sum := 0.0
	for range workers.Procs() {
		sum += <-best
	}
	return sum
}
