// Package ends maps non-finite sinks, slopes and earlier LSEs to values with which all kernels
// produce the same NaN rows.
package ends

import "math"

var nan = float32(math.NaN())

// Logit returns x, a sink or the LSE of earlier keys, but NaN if x is +Inf. This NaN makes the row
// NaN, as the score +Inf of a key does.
func Logit(x float32) float32 {
	if x > math.MaxFloat32 {
		return nan
	}
	return x
}

// Slope returns the ALiBi slope x, or NaN if x is infinite. The product of an infinite slope and
// distance 0 would be NaN anyway, but the products with other distances would be infinite.
func Slope(x float32) float32 {
	if x > math.MaxFloat32 || x < -math.MaxFloat32 {
		return nan
	}
	return x
}
