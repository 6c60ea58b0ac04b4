package simd

import "math"

// storeRowMax stores the row maximum of row i of head h, if the caller requested it. With Carry, it
// keeps a larger maximum of the earlier keys. The LSE of the earlier keys must still be in place.
func (j *job) storeRowMax(b, h, i int, m float64, l float32) {
	if !j.p.RowMax {
		return
	}
	m = float64(rowMax(m, l))
	to := &j.args.RowMax.Float32s()[j.args.RowMax.Offset(b, h, i)]
	if !math.IsInf(j.earlierLSE(b, h, i), -1) {
		m = max(m, float64(*to))
	}
	*to = float32(m)
}

// rowMax returns m, the largest score of a row, or NaN if m is +Inf or l, the sum of the row's weights, is NaN.
func rowMax(m float64, l float32) float32 {
	if l != l || m > math.MaxFloat64 {
		return float32(math.NaN())
	}
	return float32(m)
}

// clearStats stores the LSE and the row maximum of row i of head h, which is padding.
func (j *job) clearStats(b, h, i int) {
	low := float32(math.Inf(-1))
	j.storeLSE(b, h, i, low)
	if j.p.RowMax {
		j.args.RowMax.Float32s()[j.args.RowMax.Offset(b, h, i)] = low
	}
}
