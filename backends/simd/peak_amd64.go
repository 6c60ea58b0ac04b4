//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

// Loops of multiply-adds, of float32 and of bf16 pairs.
var (
	loopAVX512     = peakLoop{"avx512", fmaPeakAVX512, 512}
	loopAVX2       = peakLoop{"avx2", fmaPeakAVX2, 192}
	loopAVX512BF16 = peakLoop{"avx512bf16", dotPeakAVX512BF16, 1024}
)

// peakLoops returns the loops of the best instructions for the type. Which one is the fastest for
// bf16 depends on the processor.
func peakLoops(t flashkit.DType) (loops []peakLoop) {
	if t == flashkit.BFloat16 && amxbf16().has {
		loops = append(loops, peakLoop{"amxbf16", tilePeak, tilePeakFLOP})
	}
	if t == flashkit.BFloat16 && avx512bf16.has {
		loops = append(loops, loopAVX512BF16)
	}
	switch {
	case avx512.has:
		return append(loops, loopAVX512)
	case avx2.has:
		return append(loops, loopAVX2)
	}
	return append(loops, portableLoop)
}

const tilePeakFLOP = 8192 // floating point operations of a round, which takes about as long as a round of the other loops

// tilePeak runs n rounds of tile products. Operands are not zero, because products of zeros may be
// faster than a kernel's products.
func tilePeak(n int) {
	var tiles [32 * 32]uint16
	for i := range tiles {
		tiles[i] = 0x3f00 | uint16(i*37&0x7f) | uint16(i*i&1)<<15 // 0.5 to 1, of both signs
	}
	tilePeakAMXBF16(n/8, &tiles[0])
}
