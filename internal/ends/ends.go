// Package ends maps non-finite sinks, slopes and earlier LSEs to values with which all kernels
// produce the same NaN rows.
package ends

import "math"

var nan = float32(math.NaN())

// Logit returns NaN if x is +Inf, and otherwise x. x is a sink, or the LSE of earlier keys. The NaN
// makes the output row NaN, as a key's score of +Inf does.
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
