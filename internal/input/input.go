// Package input makes and reads the tensors of problems: random, from files, or the embedded
// sample, on the host or a GPU.
package input

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/npy"
	"github.com/flashkit-go/flashkit/safetensors"
)

// An Input holds a problem and its input tensors.
type Input struct {
	Problem  flashkit.Problem
	Layout   Layout
	Source   string          // description for people
	Args     flashkit.Args   // inputs of the passes; with Carry also O and LSE of earlier keys
	Expected flashkit.Tensor // O by an independent implementation, zero if unknown
}

// sample holds Q, K and V of a real transformer layer on real text, and O and LSE by an independent
// implementation. sample/PROVENANCE.md names the sources.
//
//go:embed sample/attention.safetensors
var sample []byte

// Sample returns the embedded sample.
func Sample() (*Input, error) {
	f, err := safetensors.Parse(sample)
	if err != nil {
		return nil, fmt.Errorf("the embedded sample: %w", err)
	}
	set := tensorSet{}
	if err := set.addFile("the embedded sample", f); err != nil {
		return nil, err
	}
	in, err := set.input(BHSD, false)
	if err != nil {
		return nil, err
	}
	in.Source = fmt.Sprintf("attention layer %s of %s on %s tokens", f.Metadata["layer"], f.Metadata["model"], f.Metadata["tokens"])
	in.Expected, err = set["o"].Decode()
	return in, err
}

// A tensorSet holds the tensors of all input files by name.
type tensorSet map[string]fileTensor

// A fileTensor is a tensor with the path of its file.
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

// ReadFiles reads the files of --in: a safetensors file, or .npy files. A .npy file has the name of
// its tensor, or is given as name=path.
func ReadFiles(args []string, l Layout, carry bool) (*Input, error) {
	set := tensorSet{}
	for _, arg := range args {
		name, path := SplitArg(arg)
		if strings.HasPrefix(arg, "=") {
			return nil, fmt.Errorf("--in %s: the name before = is missing", arg)
		}
		b, err := ReadWhole(path)
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
	in, err := set.input(l, carry)
	if err != nil {
		return nil, err
	}
	in.Source = strings.Join(args, ", ")
	return in, nil
}

// SplitArg splits name=path. Without name=, the name is the base name of a .npy file, and "" for
// other files.
func SplitArg(arg string) (name, path string) {
	if name, path, named := strings.Cut(arg, "="); named {
		return name, path
	}
	if strings.HasSuffix(arg, ".npy") {
		name = strings.TrimSuffix(filepath.Base(arg), ".npy")
	}
	return name, arg
}

// parseFile parses a .npy file if name is set, else a safetensors file.
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

// input collects the arguments and derives the problem.
func (s tensorSet) input(l Layout, carry bool) (*Input, error) {
	in := &Input{Layout: l}
	for _, a := range flashkit.Arguments() {
		name, given := strings.ToLower(a.Name), false
		switch _, there := s[name]; a.Name {
		case "Q", "K", "V":
			given = true
		case "O", "LSE":
			given = carry
		case "RowMax":
			given = carry && there
		case "KeyMass": // a result
		case "DQ", "DK", "DV", "DBias", "DSink": // results, which are not read
		default:
			given = there
		}
		if !given {
			continue
		}
		t, err := s.argument(&a, name, l)
		if err != nil {
			return nil, err
		}
		*a.Of(&in.Args) = t
	}
	if err := s.sequences(&in.Args); err != nil {
		return nil, err
	}
	in.Problem = flashkit.ProblemOf(&in.Args, flashkit.Band{})
	in.Problem.Carry = carry
	if err := in.Problem.Validate(); err != nil {
		return nil, err
	}
	return in, in.checkShapes()
}

// checkShapes rejects shapes and types that contradict each other. Its errors show shapes in the
// file's layout.
func (in *Input) checkShapes() error {
	q, k, v := in.Args.Q.Shape(), in.Args.K.Shape(), in.Args.V.Shape()
	keys := k
	keys[3] = q[3]
	if in.Args.Seqs == nil {
		keys[0] = q[0]
	}
	for _, t := range []struct {
		name string
		t    *flashkit.Tensor
		want [4]int
	}{{"k", &in.Args.K, keys}, {"v", &in.Args.V, [4]int{keys[0], k[1], k[2], v[3]}}, {"do", &in.Args.DO, [4]int{q[0], q[1], q[2], v[3]}}} {
		if t.t.IsZero() {
			continue
		}
		if s, l := t.t.Shape(), in.Layout; s != t.want {
			return fmt.Errorf("tensor %s has shape %v, but the others call for %v (%s)", t.name, l.swap(s), l.swap(t.want), l)
		}
		want := in.Problem.DType
		if t.name != "do" {
			want = in.Problem.KVType()
		}
		if t.t.DType() != want {
			return fmt.Errorf("tensor %s has type %v, but the others call for %v", t.name, t.t.DType(), want)
		}
	}
	return nil
}

// argument returns the tensor of an argument, which must have rank 4 and type F32, F16 or BF16.
// There are exceptions. LSE, DLSE and RowMax lack the last dimension. Arguments with a number per head have
// rank 1 or 2. Biases and masks may lack leading dimensions, and masks are boolean.
func (s tensorSet) argument(a *flashkit.Argument, name string, l Layout) (x flashkit.Tensor, err error) {
	t, ok := s[name]
	if !ok {
		needs := "the input needs q, k and v"
		if a.Name == "O" || a.Name == "LSE" {
			needs = "--carry continues o and lse"
		}
		return x, fmt.Errorf("tensor %s is missing: %s; %s", name, needs, s.names())
	}
	rank, ranks, types := len(t.Shape), "4, "+string(l), "F32, F16 or BF16"
	fits := rank == 4
	switch {
	case a.Name == "LSE" || a.Name == "DLSE" || a.Name == "RowMax":
		ranks, fits = "3, "+string(l)+" without the last", rank == 3
		t.Shape = append(t.Shape[:rank:rank], 1)
	case SideOf(a.Name) == pairs:
		ranks, fits = "1 to 4, the end of "+pairsShape(a.Name), rank >= 1 && rank <= 4
	case a.Name == "Slopes":
		if ranks, fits = "1 or 2, [batch, heads]", rank == 1 || rank == 2; rank == 1 {
			t.Shape = append([]int{1}, t.Shape...)
		}
		t.Shape = append(t.Shape[:len(t.Shape):len(t.Shape)], 1, 1)
	case a.Name == "Sink":
		ranks, fits = "1, [heads]", rank == 1
		t.Shape = append(append([]int{1}, t.Shape...), 1, 1)
	}
	if !fits {
		return x, fmt.Errorf("%s: tensor %s has rank %d, shape %v: must be %s", t.path, name, rank, s[name].Shape, ranks)
	}
	if l.Of(a.Name) == BSHD {
		x, err = t.DecodeBSHD()
	} else {
		x, err = t.Decode()
	}
	kind := flashkit.Float32 // of numbers
	switch a.Name {
	case "Mask":
		types, kind = "BOOL or U8", flashkit.Bool
	case "Ranges":
		types, kind = "I32", flashkit.Int32
	}
	is := x.DType()
	if is == flashkit.Float16 || is == flashkit.BFloat16 {
		is = flashkit.Float32
	}
	if err != nil || is != kind {
		return x, fmt.Errorf("%s: tensor %s has type %s: must be %s", t.path, name, t.DType, types)
	}
	if a.DType(&flashkit.Problem{DType: flashkit.Float16}) == flashkit.Float32 {
		x = Converted(x, flashkit.Float32)
	}
	return x, nil
}

func pairsShape(argument string) string {
	if argument == "Ranges" {
		return "[batch, heads, rows, ends of ranges]"
	}
	return "[batch, heads, rows, keys]"
}

// names returns a list of the tensors for messages.
func (s tensorSet) names() string {
	const most = 6
	var list []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		list = append(list, fmt.Sprintf("%.30q", name))
	}
	switch n := len(list); {
	case n == 0:
		return "the file has no tensors"
	case n > most:
		return fmt.Sprintf("there are %s and %d more", strings.Join(list[:most], ", "), n-most)
	}
	return "there are " + strings.Join(list, ", ")
}

func (s tensorSet) sequences(args *flashkit.Args) error {
	seqs := new(flashkit.Sequences)
	for _, x := range []struct {
		name string
		to   *[]int32
		rank int
	}{{"q_lens", &seqs.QLens, 1}, {"kv_lens", &seqs.KVLens, 1}, {"q_starts", &seqs.QStarts, 1}, {"kv_starts", &seqs.KVStarts, 1}, {"pages", &seqs.Pages, 2}} {
		t, ok := s[x.name]
		if !ok {
			continue
		}
		list, err := t.Int32s()
		switch {
		case t.DType != "I32" && t.DType != "I64":
			return fmt.Errorf("%s: tensor %s has type %s: must be I32 or I64", t.path, x.name, t.DType)
		case len(t.Shape) != x.rank:
			return fmt.Errorf("%s: tensor %s has rank %d, shape %v: must be %d", t.path, x.name, len(t.Shape), t.Shape, x.rank)
		case err != nil:
			return fmt.Errorf("%s: %w", t.path, err)
		case strings.HasSuffix(x.name, "starts") && len(list) == 0:
			return fmt.Errorf("%s: tensor %s is empty: must have an element more than there are sequences", t.path, x.name)
		}
		*x.to, args.Seqs = list, seqs
	}
	return s.checkSequences(seqs, args)
}

// checkSequences rejects lengths and pages that do not match the other tensors.
func (s tensorSet) checkSequences(seqs *flashkit.Sequences, args *flashkit.Args) error {
	packed := max(len(seqs.QStarts), len(seqs.KVStarts)) > 2 // several sequences
	switch {
	case packed && seqs.QStarts == nil && args.Q.Shape()[0] == 1:
		return errors.New("tensor q_starts is missing: kv_starts has several sequences, and q has batch 1")
	case packed && seqs.KVStarts == nil && seqs.Pages == nil && args.K.Shape()[0] == 1:
		return errors.New("tensor kv_starts is missing: q_starts has several sequences, and k has batch 1")
	}
	if n, b := len(seqs.QLens), args.Q.Shape()[0]; seqs.QLens != nil && seqs.QStarts == nil && n != b {
		return fmt.Errorf("tensor q_lens has %d lengths, but q has %d sequences", n, b)
	}
	if n, b := len(seqs.KVLens), args.K.Shape()[0]; seqs.KVLens != nil && seqs.KVStarts == nil && seqs.Pages == nil && n != b {
		return fmt.Errorf("tensor kv_lens has %d lengths, but k has %d sequences", n, b)
	}
	if seqs.Pages == nil {
		return nil
	}
	if n := s["pages"].Shape[0]; seqs.KVLens == nil || n != len(seqs.KVLens) {
		return errors.New("tensor pages: must have a row for each element of kv_lens")
	}
	if w, page := s["pages"].Shape[1], args.K.Shape()[2]; page > 0 && w > math.MaxInt/page {
		return fmt.Errorf("tensor pages has %d pages of %d keys for each sequence: more than an int can count", w, page)
	}
	return nil
}
