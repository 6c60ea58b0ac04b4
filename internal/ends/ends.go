// Package ends says what a sink, a slope and an earlier LSE that are not finite become
// before a kernel computes with them, so that all kernels give the same rows of NaN.
package ends

import "math"

var nan = float32(math.NaN())

// Logit returns x, a sink or the LSE of earlier keys, as a score of its row: NaN for +Inf,
// which makes a row NaN as any other score of +Inf does.
func Logit(x float32) float32 {
	if x > math.MaxFloat32 {
		return nan
	}
	return x
}

// Slope returns x, a slope of ALiBi, or NaN for an infinite one: times the distance 0 it
// would be NaN, and times others hide or raise a key.
func Slope(x float32) float32 {
	if x > math.MaxFloat32 || x < -math.MaxFloat32 {
		return nan
	}
	return x
}
