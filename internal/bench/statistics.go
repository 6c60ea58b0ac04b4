package bench

import (
	"math"
	"slices"
	"time"
)

// GeometricMean returns the geometric mean of positive values.
func GeometricMean(values []float64) float64 {
	logs := 0.0
	for _, v := range values {
		logs += math.Log(v)
	}
	return math.Exp(logs / float64(len(values)))
}

// Median sorts the times and returns their median.
func Median(times []time.Duration) time.Duration {
	slices.Sort(times)
	n := len(times)
	return (times[(n-1)/2] + times[n/2]) / 2
}

// Quantile returns the q-quantile of sorted values, interpolated.
func Quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
