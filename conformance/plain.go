package conformance

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/internal/half"
)

// The bound of a case is what rounding excuses: twice the largest error that
// the plain, materialized algorithm makes in the precision of the problem
// (three times for gradients), plus a floor for results that the plain
// algorithm happens to hit exactly. FlashAttention's tests use the same rule.
//
// The precision of the problem is: inputs, outputs, P and dS in its dtype, every
// sum and LSE in float32.
//
// A random problem has no one to see that the plain algorithm was lucky with it.
// There the sums over the head dim begin at several places, and the largest
// error counts.

// A result is what the passes write: named arrays, dense.
type result struct{ o, lse, dq, dk, dv []float64 }

// The names of the arrays of a result, as in the vectors.
var outputNames = [...]string{"o", "lse", "dq", "dk", "dv"}

func (r result) arrays() [5][]float64 { return [5][]float64{r.o, r.lse, r.dq, r.dk, r.dv} }

func (r *result) set(i int, x []float64) {
	*[...]*[]float64{&r.o, &r.lse, &r.dq, &r.dk, &r.dv}[i] = x
}

// truth returns the oracle's result for the inputs.
func truth(in *Inputs) (r result) {
	r.o, r.lse = oracle.Forward(in.p, in.oracle())
	r.dq, r.dk, r.dv = oracle.Backward(in.p, in.oracle())
	return r
}

// bounds returns the largest error allowed in each array of the result want, for
// a problem stored as t, from as many runs of the plain algorithm.
func bounds(in *Inputs, t flashkit.DType, want result, runs int) (b [5]float64) {
	var made [5]float64
	for run := range runs {
		for i, got := range plain(in, t, float64(run)/float64(runs), want).arrays() {
			made[i] = max(made[i], maxError(got, want.arrays()[i]))
		}
	}
	unit := map[flashkit.DType]float64{flashkit.Float32: 0x1p-24, flashkit.Float16: 0x1p-11, flashkit.BFloat16: 0x1p-8}[t]
	for i := range b {
		times, u := 2.0, unit
		switch outputNames[i] {
		case "dq", "dk", "dv":
			times = 3
		case "lse":
			u = 0x1p-24
		}
		largest := 0.0
		for _, x := range want.arrays()[i] {
			if !math.IsInf(x, 0) {
				largest = max(largest, math.Abs(x))
			}
		}
		b[i] = times*made[i] + 0x1p-20*max(1, largest) + u*largest
	}
	return b
}

// maxError returns the largest difference between finite values.
func maxError(got, want []float64) float64 {
	worst := 0.0
	for i := range want {
		if e := math.Abs(got[i] - want[i]); e > worst {
			worst = e
		}
	}
	return worst
}

// rounder returns the function that rounds to t.
func rounder(t flashkit.DType) func(float32) float32 {
	switch t {
	case flashkit.Float16:
		return func(x float32) float32 { return half.FromF16(half.ToF16(x)) }
	case flashkit.BFloat16:
		return func(x float32) float32 { return half.FromBF16(half.ToBF16(x)) }
	}
	return func(x float32) float32 { return x }
}

// plain computes both passes the plain way in the precision of t, with the sums
// over the head dim beginning at a fraction of it. As in life, the backward pass
// gets an O in the precision of t and an LSE in float32.
func plain(in *Inputs, t flashkit.DType, begin float64, want result) result {
	x := plainRun{
		Inputs: in, begin: begin, round: rounder(t), want: want,
		result: result{o: make([]float64, len(want.o)), lse: make([]float64, len(want.lse))},
		dq:     make([]float32, len(in.q)), dk: make([]float32, len(in.k)), dv: make([]float32, len(in.v)),
		s: make([]float32, in.p.KVLen), oRow: make([]float32, in.p.VDim),
	}
	for row := range in.p.Batch * in.p.Heads * in.p.QLen {
		x.forward(row)
		x.backward(row)
	}
	for i, grad := range [][]float32{x.dq, x.dk, x.dv} {
		for c := range grad {
			grad[c] = x.round(grad[c])
		}
		x.result.set(2+i, widen(grad))
	}
	return x.result
}

type plainRun struct {
	*Inputs
	begin        float64
	round        func(float32) float32
	want, result result
	dq, dk, dv   []float32
	s, oRow      []float32 // of the row at hand: its scores and its O
}

// place returns the row's number within its head, and the first row of its K
// and V.
func (x *plainRun) place(row int) (i, keys int) {
	p := x.p
	h, b := row/p.QLen%p.Heads, row/p.QLen/p.Heads
	return row % p.QLen, (b*p.KVHeads + h/(p.Heads/p.KVHeads)) * p.KVLen
}

// forward computes P = exp(S - max) / sum and O = P V of one row.
func (x *plainRun) forward(row int) {
	p := x.p
	i, keys := x.place(row)
	q, scale := x.q[row*p.Dim:][:p.Dim], float32(p.SoftmaxScale())
	top, sum := float32(math.Inf(-1)), float32(0)
	for j := range x.s {
		if oracle.Sees(p, i, j) {
			x.s[j] = float32(x.dot(q, x.k[(keys+j)*p.Dim:]) * scale)
			top = max(top, x.s[j])
		}
	}
	for j := range x.s {
		if oracle.Sees(p, i, j) {
			sum += exp32(x.s[j] - top)
		}
	}
	clear(x.oRow)
	for j := range x.s {
		if oracle.Sees(p, i, j) {
			addScaled(x.oRow, x.round(exp32(x.s[j]-top)/sum), x.v[(keys+j)*p.VDim:])
		}
	}
	for c, o := range x.oRow {
		x.result.o[row*p.VDim+c] = float64(x.round(o))
	}
	x.result.lse[row] = float64(top + float32(math.Log(float64(sum))))
}

// backward computes P = exp(S - LSE) and dS = P (dP - delta) of one row, whose
// scores forward has left, and adds its part of the gradients.
func (x *plainRun) backward(row int) {
	p := x.p
	i, keys := x.place(row)
	lse := float32(x.want.lse[row])
	if math.IsInf(float64(lse), -1) {
		return
	}
	q, do := x.q[row*p.Dim:][:p.Dim], x.do[row*p.VDim:][:p.VDim]
	for c := range x.oRow {
		x.oRow[c] = x.round(float32(x.want.o[row*p.VDim+c]))
	}
	delta := x.dot(do, x.oRow)
	if x.dlse != nil {
		delta -= x.dlse[row]
	}
	scale := float32(p.SoftmaxScale())
	for j, s := range x.s {
		if !oracle.Sees(p, i, j) {
			continue
		}
		k, v := (keys+j)*p.Dim, (keys+j)*p.VDim
		prob := exp32(s - lse)
		ds := x.round(prob * (x.dot(do, x.v[v:]) - delta))
		addScaled(x.dv[v:][:p.VDim], x.round(prob), do)
		addScaled(x.dk[k:][:p.Dim], ds*scale, q)
		addScaled(x.dq[row*p.Dim:][:p.Dim], ds*scale, x.k[k:])
	}
}

func exp32(x float32) float32 { return float32(math.Exp(float64(x))) }

// The conversions in dot and addScaled keep the compiler from fusing multiply and
// add, so that bounds do not depend on how it was told to build.

func (x *plainRun) dot(a, b []float32) (sum float32) {
	from := int(x.begin * float64(len(a)))
	for i := range a {
		c := (from + i) % len(a)
		sum += float32(a[c] * b[c])
	}
	return sum
}

func addScaled(sum []float32, w float32, x []float32) {
	x = x[:len(sum)]
	for i := range sum {
		sum[i] += float32(w * x[i])
	}
}
