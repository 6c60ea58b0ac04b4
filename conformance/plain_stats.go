package conformance

import "math"

// rowMax stores the row maximum of a row whose largest score is top, if the problem has one.
func (x *plainRun[F, A]) rowMax(at *plainRow, top F) {
	p, in := &at.p, x.in
	if !p.RowMax {
		return
	}
	if at.i < p.QLen && p.Carry && !math.IsInf(float64(in.earlierLSE[at.row]), -1) {
		top = max(top, F(in.earlierMax[at.row]))
	}
	x.sums[sumRowMax][0][at.row] = A(top)
}
