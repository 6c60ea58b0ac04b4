package bert

import "math"

// A norm makes rows of mean 0 and variance 1, the biased one, and then scales and shifts
// their features.
type norm struct {
	weight, bias []float32
	eps          float64
}

// sums is how many partial sums a row has: as many additions are in flight at a time, and each
// sum is rounded in small units.
const sums = 8

// rows normalizes rows in place.
func (n *norm) rows(x []float32) {
	h := len(n.weight)
	for ; len(x) > 0; x = x[h:] {
		n.row(x[:h])
	}
}

func (n *norm) row(x []float32) {
	mean := float32(total(x, 0, false) / float64(len(x)))
	variance := total(x, mean, true) / float64(len(x))
	scale := float32(1 / math.Sqrt(variance+n.eps))
	weight, bias := n.weight[:len(x)], n.bias[:len(x)]
	for i, v := range x {
		x[i] = (v-mean)*scale*weight[i] + bias[i]
	}
}

// total returns the sum of x, or that of the squares of the differences from the mean.
func total(x []float32, mean float32, squares bool) float64 {
	var s [sums]float32
	i := 0
	if squares {
		for ; i+sums <= len(x); i += sums {
			v := (*[sums]float32)(x[i:])
			for j := range s {
				d := v[j] - mean
				s[j] += d * d
			}
		}
		for ; i < len(x); i++ {
			d := x[i] - mean
			s[0] += d * d
		}
	} else {
		for ; i+sums <= len(x); i += sums {
			v := (*[sums]float32)(x[i:])
			for j := range s {
				s[j] += v[j]
			}
		}
		for ; i < len(x); i++ {
			s[0] += x[i]
		}
	}
	sum := 0.0
	for _, v := range s {
		sum += float64(v)
	}
	return sum
}

// meanVector sets dst to the mean of rows, divided by its length.
func meanVector(dst, rows []float32) {
	clear(dst)
	h := len(dst)
	count, squares := float32(max(1, len(rows)/h)), 0.0
	for ; len(rows) > 0; rows = rows[h:] {
		for i, v := range rows[:h] {
			dst[i] += v
		}
	}
	for i := range dst {
		dst[i] /= count
		squares += float64(dst[i]) * float64(dst[i])
	}
	scale := float32(1 / max(math.Sqrt(squares), 1e-12))
	for i := range dst {
		dst[i] *= scale
	}
}
