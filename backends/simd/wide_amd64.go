//go:build !purego

package simd

import (
	"math"
	"sync"
	"time"
)

// wideRate is this processor's rate of float32 products by AVX-512 relative to AVX2: 2, or 1 if a product of
// 512 bits takes as long as two of 256 bits. It is measured once, as pairRate is.
var wideRate = sync.OnceValue(func() float64 {
	if !avx512.has {
		return 2
	}
	return max(1, relativeRate(loopAVX512, loopAVX2))
})

// widePace adapts pace c of AVX-512 routines to this processor's wideRate. c was measured on a processor
// with wideRate 2.
func widePace(c pace) pace {
	if wideRate() < 2 {
		return c.slowed(c.narrow)
	}
	return c
}

// relativeRate returns this core's rate of a relative to its rate of b: 2, 1 or 1/2.
func relativeRate(a, b peakLoop) float64 {
	const rounds, tries = 512, 16      // a core may run wide vectors slowly for its first 20 µs of them
	rate := func(l peakLoop) float64 { // of this core alone; peakLoop.rate uses all cores and takes longer
		best := time.Hour
		for range tries {
			start := time.Now()
			l.run(rounds)
			best = min(best, time.Since(start))
		}
		return l.flops / float64(max(1, best))
	}
	return math.Exp2(max(-1, min(math.Round(math.Log2(rate(a)/rate(b))), 1)))
}
