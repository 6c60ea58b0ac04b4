package conformance

import (
	"embed"
	"fmt"
	"strconv"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/safetensors"
)

// Generator names the program and version that made the vectors. It changes
// when the truth does.
const Generator = "flashkit-vectors 1"

//go:embed testdata
var testdata embed.FS

var dtypes = [...]flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}

// Vector computes the golden vector of a case: the oracle's results, the bounds
// for each type, and the inputs when they are not plain noise. The format is
// described in testdata/README.md.
func (c Case) Vector() *safetensors.File {
	in := c.Inputs()
	p, want := in.p, truth(in)
	f := &safetensors.File{Metadata: map[string]string{
		"case": c.Name, "catches": c.Catches, "problem": p.String(), "generator": Generator, "inputs": "noise",
	}}
	add := func(name string, shape [4]int, x []float32) {
		dims := shape[:]
		if shape == p.LSEShape() && (name == "lse" || name == "dlse") {
			dims = shape[:3]
		}
		f.Tensors = append(f.Tensors, safetensors.FromFloat32s(name, dims, x))
	}
	if c.Catches != "" {
		f.Metadata["inputs"] = "stored"
		add("q", p.QShape(), in.q)
		add("k", p.KShape(), in.k)
		add("v", p.VShape(), in.v)
		add("do", p.OShape(), in.do)
		if in.dlse != nil {
			add("dlse", p.LSEShape(), in.dlse)
		}
	}
	shapes := [5][4]int{p.OShape(), p.LSEShape(), p.QShape(), p.KShape(), p.VShape()}
	for i, x := range want.arrays() {
		if i < 2 || c.sealed {
			add(outputNames[i], shapes[i], narrow(x))
		}
	}
	for _, t := range dtypes {
		for i, b := range c.boundsFor(in, t, want) {
			f.Metadata["bound_"+outputNames[i]+"_"+t.String()] = strconv.FormatFloat(b, 'g', 6, 64)
		}
	}
	return f
}

// boundsFor is vectorBounds, but for the promise that the grid in float32 is held to
// 1e-5 absolute.
func (c Case) boundsFor(in *Inputs, t flashkit.DType, want result) [5]float64 {
	if c.Catches == "" && t == flashkit.Float32 {
		return [5]float64{1e-5, 1e-5, 1e-5, 1e-5, 1e-5}
	}
	return vectorBounds(in, t, want)
}

// expect returns what the stored vector of the case says: the results and the
// bounds for the type of the case's problem. Gradients that are not stored come
// from the oracle.
func (c Case) expect(in *Inputs) (want result, bound [5]float64, err error) {
	b, err := testdata.ReadFile("testdata/" + c.Name + ".safetensors")
	if err != nil {
		return want, bound, err
	}
	f, err := safetensors.Parse(b)
	if err != nil {
		return want, bound, fmt.Errorf("%s: %w", c.Name, err)
	}
	if got := f.Metadata["generator"]; got != Generator {
		return want, bound, fmt.Errorf("%s: made by %q, this is %q: run make vectors", c.Name, got, Generator)
	}
	if !c.sealed {
		want = truth(in)
	}
	for i, name := range outputNames {
		if bound[i], err = strconv.ParseFloat(f.Metadata["bound_"+name+"_"+c.Problem.DType.String()], 64); err != nil {
			return want, bound, fmt.Errorf("%s: bound of %s: %w", c.Name, name, err)
		}
		t, ok := f.Tensor(name)
		if !ok {
			continue
		}
		x, err := t.Float32s()
		if err != nil {
			return want, bound, fmt.Errorf("%s: %w", c.Name, err)
		}
		want.set(i, widen(x))
	}
	return want, bound, nil
}
