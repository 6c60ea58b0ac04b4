package conformance

import (
	"math"

	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// setStats sets the oracle's statistics of rows and keys, if the problem has some.
func (r *result) setStats(in *Inputs) {
	if in.p.RowMax {
		r.rowmax = oracle.RowMax(in.p, in.oracle())
	}
	if in.p.KeyMass {
		r.keymass = oracle.KeyMass(in.p, in.oracle())
	}
}

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

// keyMass adds the weights of a row to the sums of its keys, if the problem has such sums. sum is the
// sum of all weights relative to top.
func (x *plainRun[F, A]) keyMass(at *plainRow, top, sum F) {
	if !at.p.KeyMass {
		return
	}
	list := x.sums[sumKeyMass][0][(at.b*at.p.Heads+at.h)*x.in.p.KVLen:]
	for j := range x.s {
		if x.counts[j] {
			list[j] += A(exp(x.s[j]-top) / sum)
		}
	}
}
