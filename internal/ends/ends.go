// Package ends maps non-finite sinks, slopes and earlier LSEs to values with which all kernels
// produce the same NaN rows.
package ends

import "math"

var nan = float32(math.NaN())

// Logit returns the score of x, which is a sink or the LSE of earlier keys. The score is x, but NaN
// for +Inf, so that the row becomes NaN. A score of +Inf also makes its row NaN.
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
