package main

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// oracleLimit is the most memory that --check may take for its matrices.
const oracleLimit = 4 << 30

func checkable(in *input, backward bool) error {
	p := in.problem
	matrices := 4.0 // scores, their slopes, weights, and what dropout left of them
	if backward {
		matrices = 10 // and their gradients, and these transposed
	}
	bytes := matrices * 8 * float64(p.QLen) * float64(p.KVLen)
	if bytes > oracleLimit {
		return fmt.Errorf("--check: the oracle writes out whole matrices, %s for %s; at most %s is allowed", terminal.Bytes(bytes), p, terminal.Bytes(oracleLimit))
	}
	const copies = 4 // of every element: as float64, by head, transposed, and what appending leaves behind
	p.Score.Bias, p.Score.Mask, p.KVDType = false, false, 0
	elements := tensorBytes(p, backward)/float64(p.DType.Size()) + float64(in.args.Bias.Len()+in.args.Mask.Len())
	bytes += copies * 8 * elements
	if err := machine.Affordable("the oracle's arrays for "+in.problem.String(), bytes); err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	return nil
}

// A padding is the arguments of a call as the oracle has them: every sequence in a batch
// of its own.
type padding struct{ call *flashkit.Call }

// shape returns the shape that an argument has there.
func (x padding) shape(a *flashkit.Argument) [4]int {
	if s := sideOf(a.Name); s == queries || s == keys {
		return a.Shape(&x.call.Problem)
	}
	return a.Of(x.call.Args).Shape()
}

// offset returns where row r of head h of sequence b lies in the memory of t, -1 for
// nowhere.
func (x padding) offset(s side, t *flashkit.Tensor, b, h, r int) int {
	c := x.call
	switch { // biases, slopes and sinks have batches where there is no sequence
	case s == queries && c.Traits.PackedQ:
		if seq := c.Seq(b); r < seq.N {
			return t.Offset(seq.QBatch, h, seq.Q0+r)
		}
		return -1
	case s == keys && (c.Traits.PackedKV || c.Page > 0):
		if seq := c.Seq(b); r < seq.M {
			at, _ := c.KeyRun(t, b, h, r)
			return at
		}
		return -1
	}
	return t.Offset(b, h, r)
}

// numbers returns the elements of t as those of the argument, with 0 where there is
// nothing.
func (x padding) numbers(a *flashkit.Argument, t *flashkit.Tensor) []float64 {
	shape, s := x.shape(a), sideOf(a.Name)
	if t.IsZero() || empty(shape) {
		return nil // any number of heads without rows
	}
	list := make([]float64, shape[0]*shape[1]*shape[2]*shape[3])
	for i := 0; i < len(list); i += shape[3] {
		row := i / shape[3]
		at := x.offset(s, t, row/shape[2]/shape[1], row/shape[2]%shape[1], row%shape[2])
		for c := 0; at >= 0 && c < shape[3]; c++ {
			list[i+c] = float64(value(t, at+c))
		}
	}
	return list
}

// oracle returns what the oracle reads. With Carry, O and LSE are those of start.
func (x padding) oracle(start *flashkit.Args) (in oracle.Inputs) {
	in.Seed = x.call.Args.Seed
	o := &x.call.Args.Origin
	in.Origin = [4]int{o.Batch, o.Head, o.Row, o.Key}
	to := map[string]*[]float64{"Q": &in.Q, "K": &in.K, "V": &in.V, "DO": &in.DO, "DLSE": &in.DLSE, "Slopes": &in.Slopes, "Sink": &in.Sink,
		"Bias": &in.Bias.X, "Mask": &in.Mask.X, "O": &in.O, "LSE": &in.LSE}
	for _, a := range flashkit.Arguments() {
		if list := to[a.Name]; list != nil {
			*list = x.numbers(&a, a.Of(start))
		}
	}
	in.Bias.Shape, in.Mask.Shape = start.Bias.Shape(), start.Mask.Shape()
	if x.call.Ragged {
		for b := range x.call.Batch {
			s := x.call.Seq(b)
			in.QLens, in.KVLens = append(in.QLens, s.N), append(in.KVLens, s.M)
		}
	}
	return in
}

// againstOracle compares what the passes wrote with what they should have. The call is the
// last one that ran.
func (w *work) againstOracle(c *flashkit.Call) (list []checkedOutput) {
	x := padding{c}
	in := x.oracle(&w.input.args)
	want := map[string][]float64{}
	want["o"], want["lse"] = oracle.Forward(c.Problem, in)
	if w.backward {
		g := oracle.Backward(c.Problem, in)
		want["dq"], want["dk"], want["dv"], want["dbias"], want["dsink"] = g.DQ, g.DK, g.DV, g.DBias, g.DSink
	}
	eachOutput(&w.problem, &w.args, w.backward, func(name string, a *flashkit.Argument, t *flashkit.Tensor) {
		d := newDifference(name, t, x.shape(a))
		shape := d.shape
		for i, want := range want[name] {
			row := i / shape[3]
			if at := x.offset(sideOf(a.Name), t, row/shape[2]/shape[1], row/shape[2]%shape[1], row%shape[2]); at >= 0 {
				d.add(i, float64(value(t, at+i%shape[3])), want)
			}
		}
		list = append(list, d.checkedOutput)
	})
	return list
}

// againstStored returns the distance of O from the stored output.
func (w *work) againstStored() distance {
	d := newDifference("o", &w.args.O, w.args.O.Shape())
	want := elements(&w.expected)
	for i, got := range elements(&w.args.O) {
		d.add(i, got, want[i])
	}
	return d.error
}

// A difference finds the distance of an output from what it should be. A NaN, or an
// infinity of the same sign, is equal to its twin, and an infinity to what the output's
// type has no other number for.
type difference struct {
	checkedOutput
	shape [4]int
	one   flashkit.Tensor // of the output's type
}

func newDifference(name string, t *flashkit.Tensor, shape [4]int) *difference {
	return &difference{checkedOutput{name: name}, shape, newTensor(t.DType(), [4]int{1, 1, 1, 1}, bhsd)}
}

// add compares element i in the order of the shape.
func (d *difference) add(i int, got, want float64) {
	special := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }
	setValue(&d.one, 0, float32(want))
	switch rounded := float64(value(&d.one, 0)); {
	case got == want || math.IsNaN(got) && math.IsNaN(rounded) || math.IsInf(got, 0) && got == rounded:
	case !special(got) && !special(rounded):
		d.error = max(d.error, distance(math.Abs(got-want))) // NaN stays
	case d.wrong == "":
		h, n, c := d.shape[1], d.shape[2], d.shape[3]
		d.wrong = fmt.Sprintf("%s%v is %.6g where the oracle has %.6g", d.name, [4]int{i / c / n / h, i / c / n % h, i / c % n, i % c}, got, want)
		d.error = distance(math.NaN())
	}
}

type checkedOutput struct {
	name  string
	error distance
	wrong string // where it is NaN or infinite, or should be; "" for nowhere
}

// A distance is the largest difference between two arrays: NaN, in JSON null,
// if one of them holds a NaN or an infinity without its twin.
type distance float64

// MarshalJSON implements json.Marshaler.
func (d distance) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(d)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(d))
}
