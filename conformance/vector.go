package conformance

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// Generator is the name and version of the program that made the golden vectors. The version
// changes with the expected results.
const Generator = "flashkit-vectors 3"

// VectorSuffix is the extension of a golden vector's file name, after VectorName.
const VectorSuffix = ".safetensors.gz"

//go:embed testdata
var testdata embed.FS

var dtypes = [...]flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}

// patterns is the number of heads stored in a golden vector of the grid. The grid makes 64
// different heads from these 8 by rotation, because a rotated head has known results. If the
// elements of all rows of Q and K are rotated alike, S does not change. If the rows of V and dO are
// rotated as well, LSE does not change, and the rows of all other results are rotated alike.
const patterns = 8

// spread returns an array of the given shape [B,H,rows,elements] from x, an array
// [patterns,rows,elements]. Head h of batch b is pattern 3b+h, modulo patterns, with each row's
// elements rotated by b. All heads of the largest case differ. A case with fewer batches or heads
// gets the first batches and heads of the largest case.
func spread[T any](x []T, shape [4]int) []T {
	y := make([]T, 0, size(shape))
	for b := range shape[0] {
		for h := range shape[1] {
			pattern := (3*b + h) % patterns
			for r := range shape[2] {
				row := x[(pattern*shape[2]+r)*shape[3]:][:shape[3]]
				turn := b % shape[3]
				y = append(append(y, row[turn:]...), row[:turn]...)
			}
		}
	}
	return y
}

// stored returns the case that the golden vector stores: c in float32. For a case of the grid, the
// stored case has one batch, and the number of heads is patterns.
func (c Case) stored() Case {
	c = c.InDType(flashkit.Float32)
	if c.grid {
		c.Problem.Batch, c.Problem.Heads, c.Problem.KVHeads = 1, patterns, patterns
		c.Name, c.grid = c.Problem.String(), false
	}
	return c
}

// VectorName returns the name of the case's golden vector, without VectorSuffix. Several cases of
// the grid share a vector.
func (c Case) VectorName() string { return c.stored().Name }

// Vector computes the golden vector of a case: the oracle's results, the bounds by type, and the
// inputs unless they are plain noise. testdata/README.md describes the format.
func (c Case) Vector() *safetensors.File {
	s := c.stored()
	in := s.Inputs()
	p, want := in.p, truth(in)
	f := &safetensors.File{Metadata: map[string]string{
		"case": s.Name, "catches": s.Catches, "problem": p.String(), "generator": Generator, "inputs": "noise",
	}}
	add := func(name string, shape [4]int, x []float32) {
		dims := shape[:]
		if shape == p.LSEShape() && (name == "lse" || name == "dlse" || name == "rowmax") {
			dims = shape[:3]
		}
		f.Tensors = append(f.Tensors, safetensors.FromFloat32s(name, dims, x))
	}
	if s.fill != nil || s.dlse || p.Features() != 0 {
		f.Metadata["inputs"] = "stored"
		add("q", p.QShape(), in.q)
		add("k", p.KShape(), in.k)
		add("v", p.VShape(), in.v)
		add("do", p.OShape(), in.do)
		if in.dlse != nil {
			add("dlse", p.LSEShape(), in.dlse)
		}
		in.features.each(p, func(name string, shape [4]int, x []float32) { add(name, shape, x) })
		if p.Score.Dropout != 0 {
			f.Metadata["seed"] = strconv.FormatUint(in.seed, 10)
		}
		if o := in.origin; p.Score.Origin {
			f.Metadata["origin"] = fmt.Sprint(o.Batch, o.Head, o.Row, o.Key)
		}
	}
	for _, i := range written(p) {
		add(outputNames[i], in.shapes()[i], narrow(want.arrays()[i]))
	}
	if c.grid { // the bounds come from the largest case, which contains the heads of the other cases
		c.Problem.Batch, c.Problem.Heads, c.Problem.KVHeads = patterns, patterns, patterns
		in = c.Inputs()
		want = truth(in)
	}
	for _, t := range s.types() {
		bounds := c.boundsFor(in, t, want)
		for _, i := range written(p) {
			f.Metadata["bound_"+outputNames[i]+"_"+t.String()] = strconv.FormatFloat(bounds[i], 'g', 6, 64)
		}
	}
	return f
}

// written returns the indices in outputNames of the arrays that the passes of p write.
func written(p flashkit.Problem) (list []int) {
	has := [len(outputNames)]bool{true, true}
	if hasBackward(p) {
		has = [...]bool{true, true, true, true, true, p.Score.Bias, p.Score.Sink, false, false}
	}
	has[sumRowMax], has[sumKeyMass] = p.RowMax, p.KeyMass
	for i := range has {
		if has[i] {
			list = append(list, i)
		}
	}
	return list
}

// shapes returns the shapes of a result's arrays.
func (in *Inputs) shapes() [len(outputNames)][4]int {
	p := in.p
	return [...][4]int{p.OShape(), p.LSEShape(), p.QShape(), p.KShape(), p.VShape(), in.bias.shape, {1, p.Heads, 1, 1}, p.LSEShape(), {p.Batch, p.Heads, 1, p.KVLen}}
}

// boundsFor returns the bounds of the case in type t. The bounds are 1e-5 for the grid in float32.
// All other bounds are from vectorBounds.
func (c Case) boundsFor(in *Inputs, t flashkit.DType, want result) bounds {
	if c.grid && t == flashkit.Float32 {
		return bounds{1e-5, 1e-5, 1e-5, 1e-5, 1e-5}
	}
	return vectorBounds(in, t, want)
}

// vectors returns the embedded golden vectors by name.
var vectors = sync.OnceValues(func() (map[string]*safetensors.File, error) {
	entries, err := testdata.ReadDir("testdata")
	if err != nil {
		return nil, err
	}
	all := map[string]*safetensors.File{}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), VectorSuffix)
		if !ok {
			continue
		}
		if all[name], err = readVector(path.Join("testdata", entry.Name())); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
	}
	return all, nil
})

func readVector(name string) (*safetensors.File, error) {
	packed, err := testdata.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return safetensors.Parse(b)
}

// expect returns the results and bounds from the case's golden vector, for the case's type.
func (c Case) expect() (want result, bound bounds, err error) {
	all, err := vectors()
	if err != nil {
		return want, bound, err
	}
	f := all[c.VectorName()]
	if f == nil {
		return want, bound, fmt.Errorf("%s: no vector %s: run make vectors", c.Name, c.VectorName())
	}
	if got := f.Metadata["generator"]; got != Generator {
		return want, bound, fmt.Errorf("%s: made by %q, this is %q: run make vectors", c.Name, got, Generator)
	}
	if bound, err = boundsIn(f, c.Problem.DType, c.Problem); err != nil {
		return want, bound, fmt.Errorf("%s: %w", c.Name, err)
	}
	for _, i := range written(c.Problem) {
		t, _ := f.Tensor(outputNames[i])
		x, err := t.Float32s()
		if err != nil {
			return want, bound, fmt.Errorf("%s: %w", c.Name, err)
		}
		if c.grid {
			x = spread(x, (&Inputs{p: c.Problem}).shapes()[i])
		}
		want.set(i, widen(x))
	}
	return want, bound, nil
}

// boundsIn returns the bounds of type t in the golden vector f of a problem.
func boundsIn(f *safetensors.File, t flashkit.DType, p flashkit.Problem) (b bounds, err error) {
	for _, i := range written(p) {
		name := outputNames[i]
		if b[i], err = strconv.ParseFloat(f.Metadata["bound_"+name+"_"+t.String()], 64); err != nil {
			return b, fmt.Errorf("bound of %s: %w", name, err)
		}
	}
	return b, nil
}
