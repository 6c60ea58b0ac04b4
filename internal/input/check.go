package input

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// oracleLimit is the maximum size in bytes of the oracle's matrices for --check.
const oracleLimit = 4 << 30

// Checkable returns an error if the oracle would need too much memory to check the input.
func Checkable(in *Input, backward bool) error {
	p := in.Problem
	matrices := 4.0 // scores, derivatives of their modification, weights, weights after dropout
	if backward {
		matrices = 10 // also their gradients and transposes
	}
	bytes := matrices * 8 * float64(p.QLen) * float64(p.KVLen)
	if bytes > oracleLimit {
		return fmt.Errorf("--check: the oracle writes out whole matrices, %s for %s; at most %s is allowed", terminal.Bytes(bytes), p, terminal.Bytes(oracleLimit))
	}
	const copies = 4 // of every element: as float64, by head, transposed, and garbage of append
	p.Score.Bias, p.Score.Mask, p.Score.Ranges, p.KVDType, p.Int8Group = false, false, 0, 0, 0
	elements := Bytes(p, backward)/float64(p.DType.Size()) + float64(in.Args.Bias.Len()+in.Args.Mask.Len()+in.Args.Ranges.Len())
	bytes += copies * 8 * elements
	if err := machine.Affordable("the oracle's arrays for "+in.Problem.String(), bytes); err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	return nil
}

// An oracleView presents the arguments of a call in the form that package oracle reads: each
// sequence is a batch entry, padded to the common length.
type oracleView struct{ call *flashkit.Call }

// shape returns the padded shape of an argument.
func (x oracleView) shape(a *flashkit.Argument) [4]int {
	if s := SideOf(a.Name); s == Queries || s == Keys {
		return a.Shape(&x.call.Problem)
	}
	return a.Of(x.call.Args).Shape()
}

// offset returns the index in t's memory of row r of head h of sequence b. The index is -1 if the
// sequence is packed or paged and has no row r.
func (x oracleView) offset(s side, t *flashkit.Tensor, b, h, r int) int {
	c := x.call
	switch { // other sides do not depend on sequences
	case s == Queries && c.Traits.PackedQ:
		if seq := c.Seq(b); r < seq.N {
			return t.Offset(seq.QBatch, h, seq.Q0+r)
		}
		return -1
	case s == Keys && (c.Traits.PackedKV || c.Page > 0):
		if seq := c.Seq(b); r < seq.M {
			at, _ := c.KeyRun(t, b, h, r)
			return at
		}
		return -1
	}
	return t.Offset(b, h, r)
}

// numbers returns the padded elements of an argument, whose tensor is t. Padding is 0.
func (x oracleView) numbers(a *flashkit.Argument, t *flashkit.Tensor) []float64 {
	shape, s := x.shape(a), SideOf(a.Name)
	if t.IsZero() || IsEmpty(shape) {
		return nil // the other dimensions of an empty shape may be huge
	}
	list := make([]float64, shape[0]*shape[1]*shape[2]*shape[3])
	for i := 0; i < len(list); i += shape[3] {
		row := i / shape[3]
		at := x.offset(s, t, row/shape[2]/shape[1], row/shape[2]%shape[1], row%shape[2])
		for c := 0; at >= 0 && c < shape[3]; c++ {
			list[i+c] = float64(Value(t, at+c))
		}
	}
	return list
}

// oracle returns the oracle's inputs. The tensors come from start, the arguments before the call,
// because a call with Carry overwrites O and LSE.
func (x oracleView) oracle(start *flashkit.Args) (in oracle.Inputs) {
	in.Seed = x.call.Args.Seed
	o := &x.call.Args.Origin
	in.Origin = [4]int{o.Batch, o.Head, o.Row, o.Key}
	to := map[string]*[]float64{"Q": &in.Q, "K": &in.K, "V": &in.V, "DO": &in.DO, "DLSE": &in.DLSE, "Slopes": &in.Slopes, "Sink": &in.Sink,
		"Bias": &in.Bias.X, "Mask": &in.Mask.X, "Ranges": &in.Ranges.X, "O": &in.O, "LSE": &in.LSE, "RowMax": &in.RowMax}
	for _, a := range flashkit.Arguments() {
		if list := to[a.Name]; list != nil {
			*list = x.numbers(&a, a.Of(start))
		}
	}
	if g := x.call.Int8Group; g != 0 {
		args := flashkit.Arguments()
		for i := range args {
			switch scales := x.numbers(&args[i], args[i].Of(start)); args[i].Name {
			case "KScale":
				dequantize(in.K, scales, x.call.Dim, g)
			case "VScale":
				dequantize(in.V, scales, x.call.VDim, g)
			}
		}
	}
	in.Bias.Shape, in.Mask.Shape, in.Ranges.Shape = start.Bias.Shape(), start.Mask.Shape(), start.Ranges.Shape()
	if x.call.Ragged {
		for b := range x.call.Batch {
			s := x.call.Seq(b)
			in.QLens, in.KVLens = append(in.QLens, s.N), append(in.KVLens, s.M)
		}
	}
	return in
}

// dequantize multiplies each group of a row's elements in x by its scale.
func dequantize(x, scales []float64, dim, group int) {
	perRow := (dim-1)/group + 1
	for i := range x {
		x[i] *= scales[i/dim*perRow+i%dim/group]
	}
}

// AgainstOracle compares the outputs with the oracle's outputs. c is the last call of the passes.
func (w *Work) AgainstOracle(c *flashkit.Call) (list []CheckedOutput) {
	x := oracleView{c}
	in := x.oracle(&w.Input.Args)
	want := map[string][]float64{}
	want["o"], want["lse"] = oracle.Forward(c.Problem, in)
	if c.RowMax {
		want["rowmax"] = oracle.RowMax(c.Problem, in)
	}
	if c.KeyMass {
		want["keymass"] = oracle.KeyMass(c.Problem, in)
	}
	if w.Backward {
		g := oracle.Backward(c.Problem, in)
		want["dq"], want["dk"], want["dv"], want["dbias"], want["dsink"] = g.DQ, g.DK, g.DV, g.DBias, g.DSink
	}
	eachOutput(&w.Problem, &w.Args, w.Backward, func(name string, a *flashkit.Argument, t *flashkit.Tensor) {
		d := newDifference(name, t, x.shape(a))
		shape := d.shape
		for i, want := range want[name] {
			row := i / shape[3]
			if at := x.offset(SideOf(a.Name), t, row/shape[2]/shape[1], row/shape[2]%shape[1], row%shape[2]); at >= 0 {
				d.add(i, float64(Value(t, at+i%shape[3])), want)
			}
		}
		list = append(list, d.CheckedOutput)
	})
	return list
}

// AgainstStored returns the distance of O from the stored output.
func (w *Work) AgainstStored() Distance {
	d := newDifference("o", &w.Args.O, w.Args.O.Shape())
	want := elements(&w.Expected)
	for i, got := range elements(&w.Args.O) {
		d.add(i, got, want[i])
	}
	return d.Error
}

// A difference accumulates the maximum error of an output. Two NaNs are equal, and so are
// infinities of the same sign. An infinite output equals a value that the output's type rounds to
// infinity.
type difference struct {
	CheckedOutput
	shape [4]int
	one   flashkit.Tensor // one element of the output's type
}

func newDifference(name string, t *flashkit.Tensor, shape [4]int) *difference {
	return &difference{CheckedOutput{Name: name}, shape, NewTensor(t.DType(), [4]int{1, 1, 1, 1}, BHSD)}
}

// add compares element i in row-major order, and updates the error.
func (d *difference) add(i int, got, want float64) {
	special := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }
	SetValue(&d.one, 0, float32(want))
	switch rounded := float64(Value(&d.one, 0)); {
	case got == want || math.IsNaN(got) && math.IsNaN(rounded) || math.IsInf(got, 0) && got == rounded:
	case !special(got) && !special(rounded):
		d.Error = max(d.Error, Distance(math.Abs(got-want))) // max propagates NaN
	case d.Wrong == "":
		h, n, c := d.shape[1], d.shape[2], d.shape[3]
		d.Wrong = fmt.Sprintf("%s%v is %.6g where the oracle has %.6g", d.Name, [4]int{i / c / n / h, i / c / n % h, i / c % n, i % c}, got, want)
		d.Error = Distance(math.NaN())
	}
}

// A CheckedOutput is an output's distance from the oracle's output.
type CheckedOutput struct {
	Name  string
	Error Distance
	Wrong string // first element whose NaN or infinity does not match, or ""
}

// A Distance is the largest difference between two arrays. It is NaN (null in JSON) if a NaN or an
// infinity in one array has no match in the other array.
type Distance float64

// MarshalJSON implements json.Marshaler.
func (d Distance) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(d)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(d))
}
