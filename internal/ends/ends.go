// Package ends maps non-finite sinks, slopes and earlier LSEs to values with which all kernels
// produce the same NaN rows.
package ends

import "math"

var nan = float32(math.NaN())

// Logit returns x, a sink or the LSE of earlier keys, as a score. +Inf becomes NaN. The row is then
// NaN, as with any score of +Inf.
func Logit(x float32) float32 {
	if x > math.MaxFloat32 {
		return nan
	}
	return x
}

// Slope returns x, an ALiBi slope. An infinite slope becomes NaN. Its product with distance 0 would
// be NaN anyway, and its products with other distances infinite.
func Slope(x float32) float32 {
	if x > math.MaxFloat32 || x < -math.MaxFloat32 {
		return nan
	}
	return x
}
