package conformance

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A Fault describes the wrong elements of one output of a runner. Got, Want, Error and Bound belong
// to the element that exceeds its bound most.
type Fault struct {
	Output string `json:"output"`
	At     []int  `json:"at"`
	Got    Number `json:"got"`
	Want   Number `json:"want"`
	Error  Number `json:"error"`
	Bound  Number `json:"bound"`
	Wrong  int    `json:"wrong"` // number of wrong elements
	Of     int    `json:"of"`    // number of elements
	Empty  bool   `json:"empty"` // each wrong element is in a row whose LSE is -Inf
}

// String returns the fault as one line.
func (f Fault) String() string {
	s := fmt.Sprintf("%s%v = %v, want %v: off by %v, bound %v; %d of %d elements are wrong", f.Output, f.At, f.Got, f.Want, f.Error, f.Bound, f.Wrong, f.Of)
	if f.Empty {
		s += ", all in rows that see no key"
	}
	return s
}

// A Number is a float64 that JSON stores as a string if it is NaN or infinite.
type Number float64

// String returns six digits, or NaN, Inf or -Inf.
func (x Number) String() string {
	if math.IsInf(float64(x), 1) {
		return "Inf"
	}
	return fmt.Sprintf("%.6g", float64(x))
}

// MarshalJSON returns a JSON number, or the string NaN, Inf or -Inf.
func (x Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
		return json.Marshal(x.String())
	}
	return json.Marshal(float64(x))
}

// Judge compares a runner's outputs with the golden vector. It returns the names of the compared
// outputs and a fault for each wrong output. A runner may omit all outputs but O. Judge returns an
// error if O is missing or if an output has an unknown name, type or shape.
func (c Case) Judge(f *safetensors.File) (judged []string, faults []Fault, err error) {
	want, bound, err := c.expect()
	if err != nil {
		return nil, nil, err
	}
	if _, err := f.Require("o"); err != nil {
		return nil, nil, err
	}
	outputs, shapes := written(c.Problem), c.Inputs().shapes()
	for _, t := range f.Tensors {
		if i := slices.Index(outputNames[:], t.Name); i < 0 || !slices.Contains(outputs, i) {
			return nil, nil, fmt.Errorf("tensor %q: the case has no such output", t.Name)
		}
	}
	for _, i := range outputs {
		t, ok := f.Tensor(outputNames[i])
		if !ok {
			continue
		}
		shape := shapes[i][:]
		switch i {
		case sumLSE, sumRowMax:
			shape = shape[:3]
		case sumDSink:
			shape = shape[1:2]
		}
		got, err := floats(t)
		if err != nil {
			return nil, nil, err
		}
		if !slices.Equal(t.Shape, shape) {
			return nil, nil, fmt.Errorf("tensor %q: shape is %v, want %v", t.Name, t.Shape, shape)
		}
		judged = append(judged, t.Name)
		if fault := faultIn(i, shape, got, want, bound[i]); fault.Wrong > 0 {
			faults = append(faults, fault)
		}
	}
	return judged, faults, nil
}

// floats returns the elements of an F32, F16 or BF16 tensor.
func floats(t safetensors.Tensor) ([]float32, error) {
	convert := map[string]func(uint16) float32{"F16": half.FromF16, "BF16": half.FromBF16}[t.DType]
	if convert == nil {
		return t.Float32s()
	}
	bits, err := t.Uint16s()
	x := make([]float32, len(bits))
	for i, b := range bits {
		x[i] = convert(b)
	}
	return x, err
}

// faultIn compares an output with its array in want. n is the output's index in outputNames.
func faultIn(n int, shape []int, got []float32, want result, bound float64) Fault {
	wanted := want.arrays()[n]
	f := Fault{Output: outputNames[n], Of: len(got), Empty: n <= sumDQ}
	worst, at := 0.0, 0
	for i, x := range got {
		e := difference(float64(x), wanted[i]) - boundOf(n, wanted[i], bound)
		if !(e > 0) {
			continue
		}
		f.Wrong++
		f.Empty = f.Empty && math.IsInf(want.lse[i*len(want.lse)/len(got)], -1)
		if e > worst {
			worst, at = e, i
		}
	}
	if f.Wrong == 0 {
		return f
	}
	f.Got, f.Want = Number(got[at]), Number(wanted[at])
	f.Error, f.Bound = Number(difference(float64(got[at]), wanted[at])), Number(boundOf(n, wanted[at], bound))
	f.At = make([]int, len(shape))
	for d, rest := len(shape)-1, at; d >= 0; d-- {
		f.At[d], rest = rest%shape[d], rest/shape[d]
	}
	return f
}
