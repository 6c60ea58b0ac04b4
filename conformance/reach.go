package conformance

import "math"

// outOfReach reports whether x of array i is an LSE so large that the bound of the others
// says nothing of it. Each of these has a bound of its own: four units in its last place.
func outOfReach(i int, x float64) bool { return i == sumLSE && math.Abs(x) >= 1<<20 }

// boundOf returns the bound of x, a wanted element of array i, where others have the bound b.
func boundOf(i int, x, b float64) float64 {
	if outOfReach(i, x) && !math.IsInf(x, 0) {
		return math.Abs(x) * 0x1p-22
	}
	return b
}
