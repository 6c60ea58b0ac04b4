package conformance

import "math"

// outOfReach reports whether array i is LSE or RowMax and x is so large that the rounding error of x exceeds
// the array's bound. boundOf gives such an x a relative bound instead.
func outOfReach(i int, x float64) bool {
	return (i == sumLSE || i == sumRowMax) && math.Abs(x) >= 1<<20
}

// boundOf returns the bound of one element of array i. x is the expected value, and b is the bound
// of the array.
func boundOf(i int, x, b float64) float64 {
	if outOfReach(i, x) && !math.IsInf(x, 0) {
		return math.Abs(x) * 0x1p-22
	}
	return b
}
