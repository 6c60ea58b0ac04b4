//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

var loopNEON = peakLoop{"neon", fmaPeakNEON, 192}

// peakLoops returns the loop of FMLA of float32, for all types: no loop measures BFMMLA, by which kernels multiply
// bf16 where the processor has it.
func peakLoops(flashkit.DType) []peakLoop { return []peakLoop{loopNEON} }
