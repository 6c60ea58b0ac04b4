//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

var loopNEON = peakLoop{"neon", fmaPeakNEON, 192}

// peakLoops returns the float32 FMLA loop for all types. No loop measures BFMMLA.
func peakLoops(flashkit.DType) []peakLoop { return []peakLoop{loopNEON} }
