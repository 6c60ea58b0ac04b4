package bert

import "math"

// meanVector sets dst to the mean of rows, divided by the Euclidean norm of the mean.
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
