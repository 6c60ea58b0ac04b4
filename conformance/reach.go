package conformance

import "math"

// outOfReach reports whether x of array i is an LSE too large for the array's bound. boundOf gives
// it a relative bound instead.
func outOfReach(i int, x float64) bool { return i == sumLSE && math.Abs(x) >= 1<<20 }

// boundOf returns the bound of x, an expected element of array i, whose common bound is b.
func boundOf(i int, x, b float64) float64 {
	if outOfReach(i, x) && !math.IsInf(x, 0) {
		return math.Abs(x) * 0x1p-22
	}
	return b
}
