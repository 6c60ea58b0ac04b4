//go:build (amd64 || arm64) && !purego

package matmul

import "math"

// logisticNumbers are the numbers of an activation x/(1 + 2^y) with y = -2 log2(e) linear (x + cubic x³), each in
// all lanes of a vector. The routines for it take their address.
type logisticNumbers [9][mostLanes]float32

// newLogistic returns the numbers of an activation that is 0, up to rounding, at -end and below. cubic
// is not 0, as 0 times infinity is NaN.
func newLogistic(linear, cubic, end float64) *logisticNumbers {
	by, n := -2*math.Log2E*linear, &logisticNumbers{}
	for i, x := range [len(n)]float64{by, by * cubic, 1, 128, 63, -end, end, 2 * linear, 6 * linear * cubic} {
		for lane := range n[i] {
			n[i][lane] = float32(x)
		}
	}
	return n
}

var (
	tanhNumbers = newLogistic(tanhLinear, tanhCubic, 13)
	siluNumbers = newLogistic(0.5, 1e-30, 100)
)

func (n *logisticNumbers) finish(f func(c *float32, cStep int, sums *float32, sumStep int, bias, before *float32, beforeStep int, residual *float32, residualStep, rows, cols, add int, numbers *float32)) finishFunc {
	return func(c *float32, cStep int, sums *float32, sumStep int, bias, before *float32, beforeStep int, residual *float32, residualStep, rows, cols, add int) {
		f(c, cStep, sums, sumStep, bias, before, beforeStep, residual, residualStep, rows, cols, add, &n[0][0])
	}
}

func (n *logisticNumbers) slope(f func(dx, x, dy *float32, n int, numbers *float32)) slopeFunc {
	return func(dx, x, dy *float32, count int) { f(dx, x, dy, count, &n[0][0]) }
}
