//go:build !noasm && !purego

package simd

import "math"

// A tileStats is what the backward pass keeps of a tile of query rows.
type tileStats struct {
	lse   []float32 // [rows]; the largest float32 where a row has no weight anywhere
	delta []float32 // [rows], dO·O - dLSE
	wild  []float32 // [1], not 0 if Q or dO may hold what is not finite and the mask has edges
	dq    []float32 // [rows][padded dim], if it cannot be gathered where it belongs
}

func (isa *laneISA) statsSize(j *job) int {
	size := 2*j.rows + 16
	if !isa.directRows(j.p.DType, j.p.Dim) {
		size += j.rows * pad(j.p.Dim)
	}
	return size
}

// stats returns the place of tile t of query head h.
func (isa *laneISA) stats(j *job, b, h, t int) tileStats {
	size := isa.statsSize(j)
	x := j.shared.all[((b*j.p.Heads+h)*tiles(j.p.QLen, j.rows)+t)*size:][:size]
	return tileStats{x[:j.rows], x[j.rows : 2*j.rows], x[2*j.rows:][:1], x[2*j.rows+16:]}
}

// takeLSE sets lse to LSE of n rows, from row r on.
func (j *job) takeLSE(lse []float32, b, h, r, n int) {
	t := &j.bwd.LSE
	for i := range n {
		lse[i] = t.Float32s()[t.Offset(b, h, r+i)]
		if math.IsInf(float64(lse[i]), -1) {
			lse[i] = math.MaxFloat32
		}
	}
}

// takeDLSE subtracts dLSE of n rows, from row r on, from delta.
func (j *job) takeDLSE(delta []float32, b, h, r, n int) {
	t := &j.bwd.DLSE
	if t.IsZero() {
		return
	}
	for i := range n {
		delta[i] -= t.Float32s()[t.Offset(b, h, r+i)]
	}
}
