// Package norm computes layer norms of rows on the CPU, with the vector instructions of the
// machine. What a row becomes depends on that row alone. Numbers below 2^-126 may count as 0.
package norm

import "math"

// Rows sets each row of dst to (x - mean) / sqrt(variance + eps) * weight + bias, with the biased
// variance of the row. A row has as many features as weight has, at least 1, and so has bias. Rows
// lie one after the other; dst is as long as x, and may be x.
func Rows(dst, x, weight, bias []float32, eps float32) {
	n := len(weight)
	if len(x) < n {
		return
	}
	dst, bias = dst[:len(x)], bias[:n]
	if vectorRows != nil {
		vectorRows(&dst[0], &x[0], &weight[0], &bias[0], n, len(x)/n, eps)
		return
	}
	portableRows(dst, x, weight, bias, eps)
}

func portableRows(dst, x, weight, bias []float32, eps float32) {
	for n := len(weight); len(x) >= n; x, dst = x[n:], dst[n:] {
		x, dst := x[:n], dst[:n]
		mean := float32(sumOf(x) / float64(n))
		scale := float32(1 / math.Sqrt(squaresOf(x, mean)/float64(n)+float64(eps)))
		for i, v := range x {
			dst[i] = (v-mean)*scale*weight[i] + bias[i]
		}
	}
}

// parts is how many partial sums there are: as many additions are in flight at a time, and each
// sum is rounded in small units.
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

// squaresOf returns the sum of the squares of the differences from the mean.
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
