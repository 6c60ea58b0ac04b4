package conformance

import (
	"math"
	"math/rand/v2"
	"slices"

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
// There it also runs on neighbors of the problem, and once without rounding but
// that of its inputs and outputs; the largest error counts.

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
	g := oracle.Backward(in.p, in.oracle())
	r.dq, r.dk, r.dv = g.DQ, g.DK, g.DV
	return r
}

// vectorBounds returns the largest error allowed in each array of the result
// want, for a problem stored as t.
func vectorBounds(in *Inputs, t flashkit.DType, want result) [5]float64 {
	var made [5]float64
	raise(&made, plain[float32, float32](in, t, want), want)
	return allowed(t, want, made, sumFloor)
}

// sweepBounds is vectorBounds for a random problem, with neighbors drawn from r.
func sweepBounds(in *Inputs, want result, r *rand.Rand) [5]float64 {
	t := in.p.DType
	var made [5]float64
	raise(&made, plain[float32, float32](in, t, want), want)
	raise(&made, plain[float64, float64](in, t, want), want)
	for range neighbors(in.p) {
		near := in.neighbor(r)
		want := truth(near)
		raise(&made, plain[float32, float32](near, t, want), want)
	}
	return allowed(t, want, made, sumFloor)
}

// raise raises the errors made to those of another result.
func raise(made *[5]float64, got, want result) {
	for i, x := range got.arrays() {
		made[i] = max(made[i], maxError(x, want.arrays()[i]))
	}
}

// neighbor returns the inputs with each element of Q changed a little, so that
// nothing is the same but what rounding amounts to.
func (in *Inputs) neighbor(r *rand.Rand) *Inputs {
	near := *in
	near.q = slices.Clone(in.q)
	for i := range near.q {
		near.q[i] *= 1 + (r.Float32()-.5)/(1<<12)
	}
	return &near
}

// allowed returns the bounds that follow from the errors that were made. floor is the
// unit of the floor under that of array i, whose largest value is given.
func allowed(t flashkit.DType, want result, made [5]float64, floor func(i int, largest float64) float64) (b [5]float64) {
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
		b[i] = times*made[i] + 0x1p-20*floor(i, largest) + u*largest
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

// plain computes both passes the plain way, with tensors stored as t. Its scores and
// products are of type F, its sums over keys and rows of type A; with float32 P and dS
// are rounded to t as well. As in life, the backward pass gets an O in the precision of
// t and an LSE in float32.
func plain[F, A float32 | float64](in *Inputs, t flashkit.DType, want result) result {
	x := plainRun[F, A]{
		in: in, store: rounder(t), want: want,
		o: make([]A, len(want.o)), lse: make([]A, len(want.lse)),
		dq: make([]A, len(in.q)), dk: make([]A, len(in.k)), dv: make([]A, len(in.v)),
		s: make([]F, in.p.KVLen),
	}
	for row := range in.p.Batch * in.p.Heads * in.p.QLen {
		x.forward(row)
		x.backward(row)
	}
	var r result
	for i, y := range [][]A{x.o, x.lse, x.dq, x.dk, x.dv} {
		stored := make([]float64, len(y))
		for c := range y {
			stored[c] = float64(float32(y[c]))
			if outputNames[i] != "lse" {
				stored[c] = float64(x.store(float32(y[c])))
			}
		}
		r.set(i, stored)
	}
	return r
}

type plainRun[F, A float32 | float64] struct {
	in         *Inputs
	store      func(float32) float32 // rounds to the type of the tensors
	want       result
	o, lse     []A
	dq, dk, dv []A
	s          []F // the scores of the row at hand
}

// round rounds an element of P or dS.
func (x *plainRun[F, A]) round(w F) F {
	if f, ok := any(w).(float32); ok {
		return F(x.store(f))
	}
	return w
}

// place returns the row's number within its head, and the first row of its K
// and V.
func (x *plainRun[F, A]) place(row int) (i, keys int) {
	p := x.in.p
	h, b := row/p.QLen%p.Heads, row/p.QLen/p.Heads
	return row % p.QLen, (b*p.KVHeads + h/(p.Heads/p.KVHeads)) * p.KVLen
}

// forward computes P = exp(S - max) / sum and O = P V of one row.
func (x *plainRun[F, A]) forward(row int) {
	p := x.in.p
	i, keys := x.place(row)
	q, scale := x.in.q[row*p.Dim:][:p.Dim], F(p.SoftmaxScale())
	top, sum := F(math.Inf(-1)), A(0)
	for j := range x.s {
		if oracle.Sees(p, i, j) {
			x.s[j] = F(dot[F](q, x.in.k[(keys+j)*p.Dim:]) * scale)
			top = max(top, x.s[j])
		}
	}
	for j := range x.s {
		if oracle.Sees(p, i, j) {
			sum += A(exp(x.s[j] - top))
		}
	}
	o := x.o[row*p.VDim:][:p.VDim]
	for j := range x.s {
		if oracle.Sees(p, i, j) {
			addScaled(o, x.round(exp(x.s[j]-top)/F(sum)), x.in.v[(keys+j)*p.VDim:])
		}
	}
	x.lse[row] = A(top + F(math.Log(float64(sum))))
}

// backward computes P = exp(S - LSE) and dS = P (dP - delta) of one row, whose
// scores forward has left, and adds its part of the gradients.
func (x *plainRun[F, A]) backward(row int) {
	p := x.in.p
	i, keys := x.place(row)
	lse := F(float32(x.want.lse[row]))
	if math.IsInf(float64(lse), -1) {
		return
	}
	q, do := x.in.q[row*p.Dim:][:p.Dim], x.in.do[row*p.VDim:][:p.VDim]
	o := narrow(x.want.o[row*p.VDim:][:p.VDim])
	for c := range o {
		o[c] = x.store(o[c])
	}
	delta := dot[F](do, o)
	if x.in.dlse != nil {
		delta -= F(x.in.dlse[row])
	}
	scale := F(p.SoftmaxScale())
	for j := range x.s {
		if !oracle.Sees(p, i, j) {
			continue
		}
		k, v := (keys+j)*p.Dim, (keys+j)*p.VDim
		prob := exp(x.s[j] - lse)
		ds := x.round(prob * (dot[F](do, x.in.v[v:]) - delta))
		addScaled(x.dv[v:][:p.VDim], x.round(prob), do)
		addScaled(x.dk[k:][:p.Dim], ds*scale, q)
		addScaled(x.dq[row*p.Dim:][:p.Dim], ds*scale, x.in.k[k:])
	}
}

func exp[F float32 | float64](x F) F { return F(math.Exp(float64(x))) }

// The conversions in dot and addScaled keep the compiler from fusing multiply and
// add, so that bounds do not depend on how it was told to build.

func dot[F float32 | float64](a, b []float32) (sum F) {
	for c := range a {
		sum += F(F(a[c]) * F(b[c]))
	}
	return sum
}

func addScaled[F, A float32 | float64](sum []A, w F, x []float32) {
	x = x[:len(sum)]
	for i := range sum {
		sum[i] += A(F(w * F(x[i])))
	}
}
