//go:build !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

var loopNEON = peakLoop{"neon", fmaPeakNEON, 192}

// peakLoops returns the loop of multiply-adds of float32, which kernels of all types use.
func peakLoops(flashkit.DType) []peakLoop { return []peakLoop{loopNEON} }
