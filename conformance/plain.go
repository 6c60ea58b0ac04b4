package conformance

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/internal/half"
)

// The bound of a case is an allowance for rounding. The plain algorithm, which stores all scores,
// computes the case in the problem's precision. The bound is twice the largest error of the plain
// algorithm for O and LSE, and three times the largest error for gradients. A floor is added, since
// the plain algorithm may happen to be exact. FlashAttention's tests use the same rule.
//
// The precision of a problem is its dtype for inputs, outputs, P and dS, and float32 for sums and
// LSE.
//
// On a random problem the plain algorithm may be unusually exact. So it also runs on slightly
// changed inputs, called neighbors, and once in float64 with only inputs and outputs rounded. The
// largest error of all runs counts.
//
// If several ranks share a sequence, gradients are rounded more often. Each rank stores its part of
// a gradient in the problem's type, and the float32 sum of the parts is rounded again. The plain
// algorithm then does the same; see [Run].

// A result holds the dense outputs of both passes.
type result struct{ o, lse, dq, dk, dv, dbias, dsink, rowmax, keymass []float64 }

// outputNames are the names of a result's arrays, as in the golden vectors.
var outputNames = [...]string{"o", "lse", "dq", "dk", "dv", "dbias", "dsink", "rowmax", "keymass"}

// bounds are the largest allowed errors of a result's arrays.
type bounds [len(outputNames)]float64

func (r *result) each() [len(outputNames)]*[]float64 {
	return [...]*[]float64{&r.o, &r.lse, &r.dq, &r.dk, &r.dv, &r.dbias, &r.dsink, &r.rowmax, &r.keymass}
}

func (r result) arrays() (list [len(outputNames)][]float64) {
	for i, x := range r.each() {
		list[i] = *x
	}
	return list
}

func (r *result) set(i int, x []float64) {
	*r.each()[i] = x
}

// truth returns the oracle's result for the inputs.
func truth(in *Inputs) (r result) {
	r.o, r.lse = oracle.Forward(in.p, in.oracle())
	r.setStats(in)
	if hasBackward(in.p) {
		g := oracle.Backward(in.p, in.oracle())
		r.dq, r.dk, r.dv, r.dbias, r.dsink = g.DQ, g.DK, g.DV, g.DBias, g.DSink
	}
	return r
}

// hasBackward reports whether the problem has a backward pass.
func hasBackward(p flashkit.Problem) bool { return p.Features()&flashkit.ForwardFeatures == 0 }

// vectorBounds returns the largest allowed error of each array of want. in is the problem's inputs,
// stored as t.
func vectorBounds(in *Inputs, t flashkit.DType, want result) bounds {
	var made bounds
	raise(&made, plain[float32, float32](in, t, want, 1), want)
	return allowed(t, want, made, sumFloor)
}

// sweepBounds returns the bounds of a random problem. It also runs the plain algorithm on
// neighbors: copies of the inputs, changed by random numbers from r. parts is the number of parts
// from which a gradient is summed.
func sweepBounds(in *Inputs, want result, r *rand.Rand, parts int) bounds {
	t := in.p.DType
	var made bounds
	raise(&made, plain[float32, float32](in, t, want, parts), want)
	raise(&made, plain[float64, float64](in, t, want, parts), want)
	for range neighbors(in.p) {
		near := in.neighbor(r)
		want := truth(near)
		raise(&made, plain[float32, float32](near, t, want, parts), want)
	}
	return allowed(t, want, made, sumFloor)
}

// raise replaces each bound in made by the largest error of the same array of got, if this error is
// larger.
func raise(made *bounds, got, want result) {
	for i, x := range got.arrays() {
		made[i] = max(made[i], maxError(i, x, want.arrays()[i]))
	}
}

// neighbor returns a copy of the inputs with small random changes of Q, K, V and dO. The results
// barely change, but their rounding errors do. V and dO must change too: in a row with one key the
// exact dQ is 0, and the computed dQ depends only on V, dO and the rounding of O.
func (in *Inputs) neighbor(r *rand.Rand) *Inputs {
	near := *in
	for _, x := range []*[]float32{&near.q, &near.k, &near.v, &near.do} {
		*x = slices.Clone(*x)
		for i := range *x {
			(*x)[i] *= 1 + (r.Float32()-.5)/(1<<12)
		}
	}
	return &near
}

// allowed returns the bounds, given made, the errors of the plain algorithm. Each bound
// has a term of 2^-20 times floor(i, largest), where largest is the largest value of array i.
func allowed(t flashkit.DType, want result, made bounds, floor func(i int, largest float64) float64) (b bounds) {
	unit := map[flashkit.DType]float64{flashkit.Float32: 0x1p-24, flashkit.Float16: 0x1p-11, flashkit.BFloat16: 0x1p-8}[t]
	for i := range b {
		times, u := 2.0, unit
		switch outputNames[i] {
		case "dq", "dk", "dv", "dbias":
			times = 3
		case "dsink":
			times, u = 3, 0x1p-24 // dsink is float32 in every problem, like LSE
		case "lse", "rowmax", "keymass":
			u = 0x1p-24
		}
		largest := 0.0
		for _, x := range want.arrays()[i] {
			if !math.IsInf(x, 0) && !math.IsNaN(x) && !outOfReach(i, x) {
				largest = max(largest, math.Abs(x))
			}
		}
		b[i] = times*made[i] + 0x1p-20*floor(i, largest) + u*largest
	}
	return b
}

// maxError returns the largest error in array i. It skips elements whose error is NaN, and LSEs for
// which outOfReach is true.
func maxError(i int, got, want []float64) float64 {
	worst := 0.0
	for at := range want {
		if e := math.Abs(got[at] - want[at]); e > worst && !outOfReach(i, want[at]) {
			worst = e
		}
	}
	return worst
}

// rounder returns a function that rounds to type t.
func rounder(t flashkit.DType) func(float32) float32 {
	switch t {
	case flashkit.Float16:
		return func(x float32) float32 { return half.FromF16(half.ToF16(x)) }
	case flashkit.BFloat16:
		return func(x float32) float32 { return half.FromBF16(half.ToBF16(x)) }
	}
	return func(x float32) float32 { return x }
}

// plain computes both passes by the plain algorithm, with tensors stored as t. F is the type of
// scores and products. A is the type of sums over keys and rows. If F is float32, P and dS are
// rounded to t as well. The backward pass reads want's O rounded to t and want's LSE rounded to
// float32. parts is the number of parts of dQ, dK, dV and dBias. Each part is stored as t before
// the parts are summed.
func plain[F, A float32 | float64](in *Inputs, t flashkit.DType, want result, parts int) result {
	x := plainRun[F, A]{in: in, store: rounder(t), want: want, s: make([]F, in.p.KVLen), slope: make([]F, in.p.KVLen), counts: make([]bool, in.p.KVLen)}
	for i, y := range want.arrays() {
		n := 1
		if i >= sumDQ && i <= sumDBias {
			n = max(1, parts)
		}
		x.sums[i] = make([][]A, n)
		for part := range x.sums[i] {
			x.sums[i][part] = make([]A, len(y))
		}
	}
	for row := range in.p.Batch * in.p.Heads * in.p.QLen {
		at := x.place(row)
		x.forward(&at)
		if hasBackward(in.p) {
			x.backward(&at)
		}
	}
	var r result
	for i, y := range want.arrays() {
		store := x.store
		if name := outputNames[i]; name == "lse" || name == "rowmax" || name == "keymass" || name == "dsink" || name == "dbias" && !in.narrowPairs {
			store = rounder(flashkit.Float32)
		}
		r.set(i, stored(x.sums[i], len(y), store))
	}
	return r
}

// stored returns the n elements of an output that is the sum of parts. Each part is rounded to the
// tensor's type, and then the sum of the parts is rounded.
func stored[A float32 | float64](parts [][]A, n int, store func(float32) float32) []float64 {
	list := make([]float64, n)
	for c := range list {
		sum := store(float32(parts[0][c]))
		for _, part := range parts[1:] {
			sum += store(float32(part[c]))
		}
		list[c] = float64(store(sum))
	}
	return list
}

type plainRun[F, A float32 | float64] struct {
	in     *Inputs
	store  func(float32) float32 // rounds a number to the tensors' type
	want   result
	sums   [len(outputNames)][][]A // the outputs, by output and part
	s      []F                     // scores of the current row
	slope  []F                     // derivative of oracle.Modify at each score of the current row
	counts []bool
}

// The index of each output in outputNames.
const (
	sumO = iota
	sumLSE
	sumDQ
	sumDK
	sumDV
	sumDBias
	sumDSink
	sumRowMax
	sumKeyMass
)

// part returns the part of a gradient to which row or key number i of n contributes.
func (x *plainRun[F, A]) part(output, i, n int) []A {
	parts := x.sums[output]
	return parts[i*len(parts)/max(1, n)]
}

// round rounds an element of P or dS to the tensors' type, if F is float32.
func (x *plainRun[F, A]) round(w F) F {
	if f, ok := any(w).(float32); ok {
		return F(x.store(f))
	}
	return w
}

// A plainRow is a query row: row is its index over all batches and heads, and b, h, i are batch,
// head and row. keys is the index of the first row of the K and V that this query row reads, over
// all batches and KV heads. p is the problem with the lengths of the row's sequence.
type plainRow struct {
	row, b, h, i, keys int
	p                  flashkit.Problem
}

func (x *plainRun[F, A]) place(row int) plainRow {
	p := x.in.p
	h, b := row/p.QLen%p.Heads, row/p.QLen/p.Heads
	return plainRow{row, b, h, row % p.QLen, (b*p.KVHeads + h/(p.Heads/p.KVHeads)) * p.KVLen, x.in.seq(b)}
}

// keep returns the dropout factor of the weight of key j.
func (x *plainRun[F, A]) keep(at *plainRow, j int) F {
	switch p := at.p.Score.Dropout; {
	case p == 0:
		return 1
	case x.in.keeps(p, at, j):
		return F(oracle.Keep(p))
	}
	return 0
}

func (f *features) keeps(p float32, at *plainRow, j int) bool {
	o := &f.origin
	return oracle.Kept(p, f.seed, o.Batch+at.b, o.Head+at.h, o.Row+at.i, o.Key+j)
}

// scores sets x.s to the scores of a row and returns their maximum. It sets x.counts to true for
// the keys that the row sees. It does not set the other keys' elements of x.s.
func (x *plainRun[F, A]) scores(at *plainRow) (top F) {
	p, in := at.p, x.in
	q, scale := in.q[at.row*p.Dim:][:p.Dim], F(p.SoftmaxScale())
	top = F(math.Inf(-1))
	for j := range x.s {
		x.counts[j] = at.i < p.QLen && j < p.KVLen && oracle.Sees(p, at.i, j) &&
			(p.Score.Ranges == 0 || in.ranges.holds(at.b, at.h, at.i, j)) &&
			(!p.Score.Mask || in.mask.x[in.mask.at(at.b, at.h, at.i, j)] != 0)
		if !x.counts[j] {
			continue
		}
		s, slope := oracle.Modify(&p.Score, F(dot[F](q, in.k[(at.keys+j)*p.Dim:])*scale))
		if p.Score.Bias {
			s += F(in.bias.x[in.bias.at(at.b, at.h, at.i, j)])
		}
		if p.Score.ALiBi {
			s -= F(in.slopes[(at.b*p.Heads+at.h)%len(in.slopes)]) * F(math.Abs(float64(j-at.i-p.Band.Diagonal(p.QLen, p.KVLen))))
		}
		x.s[j], x.slope[j] = s, slope
		top = max(top, s)
	}
	return top
}

// forward computes P = exp(S - max) / sum and O = P V for one row.
func (x *plainRun[F, A]) forward(at *plainRow) {
	p, in := at.p, x.in
	top := x.scores(at)
	x.rowMax(at, top)
	o := x.sums[sumO][0][at.row*p.VDim:][:p.VDim]
	sink, earlier := F(math.Inf(-1)), F(math.Inf(-1))
	if at.i < p.QLen && p.Score.Sink {
		sink = F(in.sink[at.h])
	}
	if at.i < p.QLen && p.Carry {
		earlier = F(in.earlierLSE[at.row])
	}
	top = max(top, sink, earlier)
	if math.IsInf(float64(top), -1) {
		x.sums[sumLSE][0][at.row] = A(top)
		return
	}
	sum := A(exp(sink-top)) + A(exp(earlier-top))
	for j := range x.s {
		if x.counts[j] {
			sum += A(exp(x.s[j] - top))
		}
	}
	if w := exp(earlier-top) / F(sum); p.Carry && w != 0 {
		old := make([]float32, p.VDim)
		for c, y := range in.earlier[at.row*p.VDim:][:p.VDim] {
			old[c] = x.store(y)
		}
		addScaled(o, w, old)
	}
	x.keyMass(at, top, F(sum))
	for j := range x.s {
		if x.counts[j] {
			addScaled(o, x.round(exp(x.s[j]-top)/F(sum)*x.keep(at, j)), in.v[(at.keys+j)*p.VDim:])
		}
	}
	x.sums[sumLSE][0][at.row] = A(top + F(math.Log(float64(sum))))
}

// backward computes P = exp(S - LSE) and dS = P (dP - delta) for one row, with the scores from
// forward. It adds the row's contribution to the gradients.
func (x *plainRun[F, A]) backward(at *plainRow) {
	p, in, row := at.p, x.in, at.row
	lse := F(float32(x.want.lse[row]))
	if math.IsInf(float64(lse), -1) {
		return
	}
	q, do := in.q[row*p.Dim:][:p.Dim], in.do[row*p.VDim:][:p.VDim]
	o := narrow(x.want.o[row*p.VDim:][:p.VDim])
	for c := range o {
		o[c] = x.store(o[c])
	}
	delta := dot[F](do, o)
	if in.dlse != nil {
		delta -= F(in.dlse[row])
	}
	if p.Score.Sink {
		x.sums[sumDSink][0][at.h] -= A(exp(F(in.sink[at.h])-lse) * delta)
	}
	scale := F(p.SoftmaxScale())
	for j := range x.s {
		if !x.counts[j] {
			continue
		}
		k, v := (at.keys+j)*p.Dim, (at.keys+j)*p.VDim
		prob, keep := exp(x.s[j]-lse), x.keep(at, j)
		ds := prob * (dot[F](do, in.v[v:])*keep - delta)
		if p.Score.Bias {
			x.part(sumDBias, at.i, p.QLen)[in.bias.at(at.b, at.h, at.i, j)] += A(ds)
		}
		ds = x.round(ds * x.slope[j])
		addScaled(x.part(sumDV, at.i, p.QLen)[v:][:p.VDim], x.round(prob*keep), do)
		addScaled(x.part(sumDK, at.i, p.QLen)[k:][:p.Dim], ds*scale, q)
		addScaled(x.part(sumDQ, j, p.KVLen)[row*p.Dim:][:p.Dim], ds*scale, in.k[k:])
	}
}

func exp[F float32 | float64](x F) F { return F(math.Exp(float64(x))) }

// The explicit conversions in dot and addScaled prevent the compiler from fusing multiplication and
// addition. Bounds thus do not depend on build options.

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
