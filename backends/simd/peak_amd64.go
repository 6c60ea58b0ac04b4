//go:build !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

// peakLoops returns the loops of the best instructions for the type. Which of two
// is the faster one for bf16 depends on the processor.
func peakLoops(t flashkit.DType) (loops []peakLoop) {
	if t == flashkit.BFloat16 && amxbf16().has {
		loops = append(loops, peakLoop{"amxbf16", func(n int) { tilePeakAMXBF16(n / 8) }, 65536 / 8})
	}
	if t == flashkit.BFloat16 && avx512bf16.has {
		loops = append(loops, peakLoop{"avx512bf16", dotPeakAVX512BF16, 1024})
	}
	switch {
	case avx512.has:
		return append(loops, peakLoop{"avx512", fmaPeakAVX512, 512})
	case avx2.has:
		return append(loops, peakLoop{"avx2", fmaPeakAVX2, 192})
	}
	return append(loops, portableLoop)
}
