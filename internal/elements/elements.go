// Package elements computes layer norms and their gradients, sums of rows and AdamW steps with vector
// instructions. A row's norm does not depend on other rows. An element's sum or step does not depend on
// other elements. Magnitudes below 2^-126 may count as 0.
package elements

import "math"

// An isa holds the routines of an instruction set. The declarations of the assembly functions
// document the routines.
type isa struct {
	rows      func(dst, x, weight, bias, moments *float32, cols, rows int, eps float32)
	gradients func(dx, x, dy, weight, moments, dWeight, dBias *float32, cols, rows int)
	add       func(sum, x *float32, step, cols, rows int)
	adamW     func(x, mean, square, grad, by *float32, n int)
	widen     func(dst *float32, src *uint16, n int)
	narrow    func(dst *uint16, src *float32, n int)
	convert   int // fewest elements that widen and narrow accept
}

// Norm sets each row of dst to (x - mean) / sqrt(variance + eps) * weight + bias, with the row's
// biased variance. A row has len(weight) features, at least 1. bias has the same length. Rows are
// contiguous. dst has the length of x and may be x. If moments is not nil, Norm stores the mean and
// 1 / sqrt(variance + eps) of each row in moments.
func Norm(dst, x, weight, bias, moments []float32, eps float32) {
	n := len(weight)
	if len(x) < n {
		return
	}
	dst, bias = dst[:len(x)], bias[:n]
	if moments != nil {
		moments = moments[:2*(len(x)/n)]
	}
	chosen.rowsOf(dst, x, weight, bias, moments, eps)
}

func (u *isa) rowsOf(dst, x, weight, bias, moments []float32, eps float32) {
	if u == nil {
		portableRows(dst, x, weight, bias, moments, eps)
		return
	}
	var m *float32
	if moments != nil {
		m = &moments[0]
	}
	n := len(weight)
	u.rows(&dst[0], &x[0], &weight[0], &bias[0], m, n, len(x)/n, eps)
}

// NormGradients sets dx to the gradient of x. dy is the gradient of Norm's result, and moments
// holds the moments that Norm computed. NormGradients adds the gradients of weight and bias to
// dWeight and dBias. dx may be dy.
func NormGradients(dx, x, dy, weight, moments, dWeight, dBias []float32) {
	n := len(weight)
	if len(x) < n {
		return
	}
	dx, dy, moments, dWeight, dBias = dx[:len(x)], dy[:len(x)], moments[:2*(len(x)/n)], dWeight[:n], dBias[:n]
	chosen.gradientsOf(dx, x, dy, weight, moments, dWeight, dBias)
}

func (u *isa) gradientsOf(dx, x, dy, weight, moments, dWeight, dBias []float32) {
	if u == nil {
		portableGradients(dx, x, dy, weight, moments, dWeight, dBias)
		return
	}
	n := len(weight)
	u.gradients(&dx[0], &x[0], &dy[0], &weight[0], &moments[0], &dWeight[0], &dBias[0], n, len(x)/n)
}

// Add adds rows of x to sum, in order. Rows have the length of sum and begin step elements apart.
func Add(sum, x []float32, step, rows int) {
	if len(sum) == 0 || rows < 1 {
		return
	}
	chosen.addTo(sum, x[:(rows-1)*step+len(sum)], step, rows)
}

func (u *isa) addTo(sum, x []float32, step, rows int) {
	if u != nil {
		u.add(&sum[0], &x[0], step, len(sum), rows)
		return
	}
	for i := range rows {
		for j, v := range x[i*step:][:len(sum)] {
			sum[j] += v
		}
	}
}

func portableRows(dst, x, weight, bias, moments []float32, eps float32) {
	n := len(weight)
	for row := 0; len(x) >= n; x, dst, row = x[n:], dst[n:], row+1 {
		x, dst := x[:n], dst[:n]
		mean := float32(sumOf(x) / float64(n))
		scale := float32(1 / math.Sqrt(squaresOf(x, mean)/float64(n)+float64(eps)))
		if moments != nil {
			moments[2*row], moments[2*row+1] = mean, scale
		}
		for i, v := range x {
			dst[i] = (v-mean)*scale*weight[i] + bias[i]
		}
	}
}

func portableGradients(dx, x, dy, weight, moments, dWeight, dBias []float32) {
	n := len(weight)
	for ; len(x) >= n; x, dx, dy, moments = x[n:], dx[n:], dy[n:], moments[2:] {
		x, dx, dy := x[:n], dx[:n], dy[:n]
		mean, scale := moments[0], moments[1]
		var sum, dot float64
		for i, d := range dy {
			y, dn := (x[i]-mean)*scale, d*weight[i]
			sum += float64(dn)
			dot += float64(dn) * float64(y)
			dWeight[i] += d * y
			dBias[i] += d
		}
		a, b := float32(sum/float64(n)), float32(dot/float64(n))
		for i, d := range dy {
			dx[i] = scale * (d*weight[i] - a - (x[i]-mean)*scale*b)
		}
	}
}

// parts is the number of partial sums of a row. The processor overlaps additions to different
// partial sums. A partial sum is smaller than the whole sum, so its rounding errors are smaller.
const parts = 8

func sumOf(x []float32) float64 {
	var s [parts]float32
	for ; len(x) >= parts; x = x[parts:] {
		v := (*[parts]float32)(x)
		for j := range s {
			s[j] += v[j]
		}
	}
	for i, v := range x {
		s[i] += v
	}
	return total(&s)
}

// squaresOf returns the sum of squared differences from the mean.
func squaresOf(x []float32, mean float32) float64 {
	var s [parts]float32
	for ; len(x) >= parts; x = x[parts:] {
		v := (*[parts]float32)(x)
		for j := range s {
			d := v[j] - mean
			s[j] += d * d
		}
	}
	for i, v := range x {
		d := v - mean
		s[i] += d * d
	}
	return total(&s)
}

func total(s *[parts]float32) (sum float64) {
	for _, v := range s {
		sum += float64(v)
	}
	return sum
}
