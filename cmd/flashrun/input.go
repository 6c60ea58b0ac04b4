package main

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/npy"
	"github.com/flashkit-go/flashkit/safetensors"
)

// An input is what to compute on.
type input struct {
	problem  flashkit.Problem
	layout   layout
	source   string // for people
	q, k, v  *array
	do       *array // nil unless given
	expected *array // O by an independent implementation; nil unless known
}

// sample is Q, K, V of an attention layer of a real transformer on a real text,
// with O and LSE by an independent implementation: sample/PROVENANCE.md.
//
//go:embed sample/attention.safetensors
var sample []byte

func sampleInput() (*input, error) {
	f, err := safetensors.Parse(sample)
	if err != nil {
		return nil, fmt.Errorf("the embedded sample: %w", err)
	}
	set := tensorSet{}
	if err := set.addFile("the embedded sample", f); err != nil {
		return nil, err
	}
	in, err := set.input(bhsd)
	if err != nil {
		return nil, err
	}
	in.source = fmt.Sprintf("attention layer %s of %s on %s tokens", f.Metadata["layer"], f.Metadata["model"], f.Metadata["tokens"])
	in.expected, err = set.array("o", bhsd)
	return in, err
}

// randomInput makes normal inputs for the problem from a seed.
func randomInput(p flashkit.Problem, seed uint64, l layout, backward bool) *input {
	r := rand.New(rand.NewPCG(seed, 0))
	fill := func(shape [4]int) *array {
		a := newArray(p.DType, shape)
		for i := range a.len() {
			a.set(i, float32(r.NormFloat64()))
		}
		return a
	}
	in := &input{problem: p, layout: l, source: fmt.Sprintf("random, seed %d", seed),
		q: fill(p.QShape()), k: fill(p.KShape()), v: fill(p.VShape())}
	if backward {
		in.do = fill(p.OShape())
	}
	return in
}

// A tensorSet holds the tensors of all input files by name.
type tensorSet map[string]fileTensor

// A fileTensor knows which file it came from.
type fileTensor struct {
	safetensors.Tensor
	path string
}

func (s tensorSet) addFile(path string, f *safetensors.File) error {
	for _, t := range f.Tensors {
		if before, twice := s[t.Name]; twice {
			return fmt.Errorf("tensor %s is in %s and in %s", t.Name, before.path, path)
		}
		s[t.Name] = fileTensor{t, path}
	}
	return nil
}

// readInputs reads the files of --in: one safetensors file, or .npy files named
// after their tensor or given as name=path.
func readInputs(args []string, l layout) (*input, error) {
	set := tensorSet{}
	for _, arg := range args {
		name, path := splitArg(arg)
		if strings.HasPrefix(arg, "=") {
			return nil, fmt.Errorf("--in %s: the name before = is missing", arg)
		}
		b, err := readWhole(path)
		if err != nil {
			return nil, fmt.Errorf("--in %s: %w", path, err)
		}
		f, err := parseFile(name, b)
		if err != nil {
			return nil, fmt.Errorf("--in %s: %w", path, err)
		}
		if err := set.addFile(path, f); err != nil {
			return nil, fmt.Errorf("--in: %w", err)
		}
	}
	in, err := set.input(l)
	if err != nil {
		return nil, err
	}
	in.source = strings.Join(args, ", ")
	return in, nil
}

// splitArg parts name=path. Without a name, a .npy file is named after itself.
func splitArg(arg string) (name, path string) {
	if name, path, named := strings.Cut(arg, "="); named {
		return name, path
	}
	if strings.HasSuffix(arg, ".npy") {
		name = strings.TrimSuffix(filepath.Base(arg), ".npy")
	}
	return name, arg
}

// parseFile parses b, a .npy file if it has a name and else a safetensors file.
func parseFile(name string, b []byte) (*safetensors.File, error) {
	if name == "" {
		return safetensors.Parse(b)
	}
	a, err := npy.Parse(b)
	if err != nil {
		return nil, err
	}
	return &safetensors.File{Tensors: []safetensors.Tensor{{Name: name, DType: a.DType, Shape: a.Shape, Data: a.Data}}}, nil
}

// input gathers q, k, v and the optional do, and derives the problem.
func (s tensorSet) input(l layout) (*input, error) {
	in := &input{layout: l}
	for _, t := range []struct {
		name     string
		to       **array
		optional bool
	}{{"q", &in.q, false}, {"k", &in.k, false}, {"v", &in.v, false}, {"do", &in.do, true}} {
		if _, ok := s[t.name]; !ok && t.optional {
			continue
		}
		a, err := s.array(t.name, l)
		if err != nil {
			return nil, err
		}
		*t.to = a
	}
	q, k, v := in.q.shape, in.k.shape, in.v.shape
	in.problem = flashkit.Problem{Batch: q[0], Heads: q[1], KVHeads: k[1], QLen: q[2], KVLen: k[2], Dim: q[3], VDim: v[3], DType: in.q.dtype}
	if err := in.problem.Validate(); err != nil {
		return nil, err
	}
	for _, t := range []struct {
		name string
		a    *array
		want [4]int
	}{{"k", in.k, in.problem.KShape()}, {"v", in.v, in.problem.VShape()}, {"do", in.do, in.problem.OShape()}} {
		if t.a == nil {
			continue
		}
		if t.a.shape != t.want {
			return nil, fmt.Errorf("tensor %s has shape %v, but the others call for %v (%s)", t.name, l.swap(t.a.shape), l.swap(t.want), l)
		}
		if t.a.dtype != in.q.dtype {
			return nil, fmt.Errorf("tensor %s has type %v, but q has %v", t.name, t.a.dtype, in.q.dtype)
		}
	}
	return in, nil
}

// array returns the tensor of that name, of rank 4, in one of the three types.
func (s tensorSet) array(name string, l layout) (*array, error) {
	t, ok := s[name]
	if !ok {
		return nil, fmt.Errorf("tensor %s is missing: the input needs q, k and v", name)
	}
	if len(t.Shape) != 4 {
		return nil, fmt.Errorf("%s: tensor %s has rank %d, shape %v: must be 4, %s", t.path, name, len(t.Shape), t.Shape, l)
	}
	shape := l.swap([4]int(t.Shape))
	for dtype, fileType := range fileTypes {
		if t.DType != fileType {
			continue
		}
		a := &array{dtype: dtype, shape: shape}
		var err error
		if dtype == flashkit.Float32 {
			a.f32, err = t.Float32s()
		} else {
			a.u16, err = t.Uint16s()
		}
		return a, err
	}
	return nil, fmt.Errorf("%s: tensor %s has type %s: must be F32, F16 or BF16", t.path, name, t.DType)
}
