package flashkit_test

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

// allFeatures is small with all features that a pass has.
func allFeatures(pass flashkit.Pass) flashkit.Problem {
	p := small()
	p.Band = flashkit.Causal().Shift(1)
	p.Score = flashkit.Score{Softcap: 30, ALiBi: true, Bias: true, Mask: true, Ranges: 2, Sink: true, Dropout: .5, Origin: true}
	p.Ragged, p.Carry = true, pass == flashkit.PassForward
	return p
}

// pagedFeatures is allFeatures with keys in pages of 2.
func pagedFeatures() flashkit.Problem {
	p := allFeatures(flashkit.PassForward)
	p.Page = 2
	return p
}

// packedArgs returns arguments of allFeatures with both sides packed.
func packedArgs(p flashkit.Problem, pass flashkit.Pass) *flashkit.Args {
	args := flashkit.NewArgs(p, pass)
	for _, a := range flashkit.Arguments() {
		if t := a.Of(args); slices.Contains([]string{"Q", "K", "V", "O", "LSE", "DO", "DLSE", "DQ", "DK", "DV"}, a.Name) && !t.IsZero() {
			s := t.Shape()
			*t = tensor(t.DType(), [4]int{1, s[1], s[0] * s[2], s[3]})
		}
	}
	n, m := int32(p.QLen), int32(p.KVLen)
	args.Seqs = &flashkit.Sequences{QStarts: []int32{0, 1, n + 1}, KVStarts: []int32{1, 1, m + 1}}
	return args
}

type change = func(p *flashkit.Problem, a *flashkit.Args)

// mistakesOfFeatures are arguments that are wrong in one way, each with the field that
// must be named, in padded sequences.
var mistakesOfFeatures = []struct {
	name, field string
	change      change
}{
	{"sequences of a dense problem", "Args.Seqs", func(p *flashkit.Problem, _ *flashkit.Args) { p.Ragged = false }},
	{"no sequences", "Args.Seqs", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs = nil }},
	{"a negative length", "Seqs.QLens[1]", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.QLens = []int32{0, -1} }},
	{"a length above the tensor", "Seqs.QLens[0]", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.QLens = []int32{4, 0} }},
	{"a negative number of keys", "Seqs.KVLens[0]", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.KVLens = []int32{math.MinInt32, 0} }},
	{"more keys than the tensor", "Seqs.KVLens[1]", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.KVLens = []int32{5, 6} }},
	{"too few lengths", "Seqs.QLens.len", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.QLens = []int32{1} }},
	{"too many lengths", "Seqs.KVLens.len", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.KVLens = []int32{1, 1, 1} }},
	{"no lengths in a list", "Seqs.QLens.len", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.QLens = []int32{} }},
	{"lengths and starts", "Seqs.QStarts", func(_ *flashkit.Problem, a *flashkit.Args) {
		a.Seqs.QLens, a.Seqs.QStarts = []int32{1, 1}, []int32{0, 1, 2}
	}},
	{"pages of keys that are not paged", "Seqs.Pages", func(_ *flashkit.Problem, a *flashkit.Args) { a.Seqs.Pages = []int32{0, 1} }},
	{"a bias of two batches too many", "Bias.shape", shaped("Bias", 0, 4)},
	{"a bias of half the heads", "Bias.shape", shaped("Bias", 1, 2)},
	{"a bias of a row too few", "Bias.shape", shaped("Bias", 2, 2)},
	{"a bias of one key", "Bias.shape", shaped("Bias", 3, 1)},
	{"a mask of half the heads", "Mask.shape", shaped("Mask", 1, 2)},
	{"a mask of one key", "Mask.shape", shaped("Mask", 3, 1)},
	{"a slope for each KV head", "Slopes.shape", shaped("Slopes", 1, 2)},
	{"slopes for three sequences", "Slopes.shape", shaped("Slopes", 0, 3)},
	{"one slope", "Slopes.shape", shaped("Slopes", 1, 1)},
	{"a sink for each KV head", "Sink.shape", shaped("Sink", 1, 2)},
	{"sinks for each sequence", "Sink.shape", shaped("Sink", 0, 2)},
	{"no bias", "Bias", func(_ *flashkit.Problem, a *flashkit.Args) { a.Bias = flashkit.Tensor{} }},
	{"no mask", "Mask", func(_ *flashkit.Problem, a *flashkit.Args) { a.Mask = flashkit.Tensor{} }},
	{"no slopes", "Slopes", func(_ *flashkit.Problem, a *flashkit.Args) { a.Slopes = flashkit.Tensor{} }},
	{"no sink", "Sink", func(_ *flashkit.Problem, a *flashkit.Args) { a.Sink = flashkit.Tensor{} }},
	{"a bias that nobody asked for", "Bias", func(p *flashkit.Problem, _ *flashkit.Args) { p.Score.Bias = false }},
	{"a mask that nobody asked for", "Mask", func(p *flashkit.Problem, _ *flashkit.Args) { p.Score.Mask = false }},
	{"slopes that nobody asked for", "Slopes", func(p *flashkit.Problem, _ *flashkit.Args) { p.Score.ALiBi = false }},
	{"a sink that nobody asked for", "Sink", func(p *flashkit.Problem, _ *flashkit.Args) { p.Score.Sink = false }},
	{"a mask of numbers", "Mask.dtype", func(_ *flashkit.Problem, a *flashkit.Args) {
		a.Mask = tensor(flashkit.Float32, a.Mask.Shape())
	}},
	{"a bias of another type", "Bias.dtype", func(_ *flashkit.Problem, a *flashkit.Args) {
		a.Bias = tensor(flashkit.BFloat16, a.Bias.Shape())
	}},
	{"a sink in f16", "Sink.dtype", func(_ *flashkit.Problem, a *flashkit.Args) { a.Sink = tensor(flashkit.Float16, a.Sink.Shape()) }},
	{"slopes in bf16", "Slopes.dtype", func(_ *flashkit.Problem, a *flashkit.Args) {
		a.Slopes = tensor(flashkit.BFloat16, a.Slopes.Shape())
	}},
	{"an origin before the first row", "Origin.Row", func(_ *flashkit.Problem, a *flashkit.Args) { a.Origin.Row = -1 }},
	{"an origin that nobody asked for", "Origin.Head", func(p *flashkit.Problem, a *flashkit.Args) { p.Score.Origin, a.Origin.Head = false, 1 }},
	{"an origin among keys that share random numbers", "Origin.Key", func(_ *flashkit.Problem, a *flashkit.Args) { a.Origin.Key = 12 }},
	{"keys beyond 31 bits", "Origin.Key", func(p *flashkit.Problem, a *flashkit.Args) { a.Origin.Key = math.MaxInt32 - p.KVLen + 1 }},
	{"sequences beyond 31 bits", "Origin.Batch", func(_ *flashkit.Problem, a *flashkit.Args) { a.Origin.Batch = math.MaxInt32 }},
	{"a bias too short", "Bias.len", func(_ *flashkit.Problem, a *flashkit.Args) { a.Bias = a.Bias.WithStrides(1000, 1000, 1000) }},
}

// shaped makes dimension d of an argument n.
func shaped(name string, d, n int) change {
	return func(_ *flashkit.Problem, a *flashkit.Args) {
		for _, x := range flashkit.Arguments() {
			if x.Name == name {
				s := x.Of(a).Shape()
				s[d] = n
				*x.Of(a) = tensor(x.Of(a).DType(), s)
			}
		}
	}
}

func TestCheckRefusesFeatures(t *testing.T) {
	for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		for _, c := range mistakesOfFeatures {
			t.Run(pass.String()+"/"+c.name, func(t *testing.T) {
				p := allFeatures(pass)
				a := flashkit.NewArgs(p, pass)
				require.NoError(t, p.Check(pass, a))
				c.change(&p, a)
				requireProblemError(t, p.Check(pass, a), c.field)
			})
		}
	}
}

func TestCheckRefusesStarts(t *testing.T) {
	for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		p := allFeatures(pass)
		require.NoError(t, p.Check(pass, packedArgs(p, pass)))
		for field, change := range map[string]func(s *flashkit.Sequences){
			"Seqs.QStarts[0]":   func(s *flashkit.Sequences) { s.QStarts = []int32{-1, 0, 1} },
			"Seqs.QStarts[1]":   func(s *flashkit.Sequences) { s.QStarts = []int32{1, 0, 1} },
			"Seqs.QStarts[2]":   func(s *flashkit.Sequences) { s.QStarts = []int32{0, 0, 4} }, // longer than QLen
			"Seqs.QStarts.len":  func(s *flashkit.Sequences) { s.QStarts = []int32{0, 1} },
			"Seqs.KVStarts[0]":  func(s *flashkit.Sequences) { s.KVStarts = []int32{math.MinInt32, math.MaxInt32, 0} },
			"Seqs.KVStarts[1]":  func(s *flashkit.Sequences) { s.KVStarts = []int32{0, math.MaxInt32, 1} },
			"Seqs.KVStarts[2]":  func(s *flashkit.Sequences) { s.KVStarts = []int32{2, 6, 11} }, // beyond the 10 keys
			"Seqs.KVStarts.len": func(s *flashkit.Sequences) { s.KVStarts = []int32{} },
			"Seqs.QStarts":      func(s *flashkit.Sequences) { s.QLens = []int32{1, 1} },
			"Seqs.KVStarts":     func(s *flashkit.Sequences) { s.KVLens = []int32{1, 1} },
		} {
			a := packedArgs(p, pass)
			change(a.Seqs)
			requireProblemError(t, p.Check(pass, a), field)
		}
	}
}

func TestCheckRefusesPages(t *testing.T) {
	p := pagedFeatures()
	require.NoError(t, p.Check(flashkit.PassForward, flashkit.NewArgs(p, flashkit.PassForward)))
	for field, change := range map[string]func(s *flashkit.Sequences){
		"Seqs.Pages[1]":  func(s *flashkit.Sequences) { s.Pages[1] = 6 },
		"Seqs.Pages[5]":  func(s *flashkit.Sequences) { s.Pages[5] = -1 },
		"Seqs.Pages[3]":  func(s *flashkit.Sequences) { s.Pages[3] = math.MaxInt32 },
		"Seqs.Pages.len": func(s *flashkit.Sequences) { s.Pages = s.Pages[:5] },
		"Seqs.KVLens[0]": func(s *flashkit.Sequences) { s.Pages = s.Pages[:4] }, // 5 keys need 3 pages
		"Seqs.KVLens[1]": func(s *flashkit.Sequences) { s.KVLens[1] = 6 },
		"Seqs.KVLens":    func(s *flashkit.Sequences) { s.KVLens = nil },
		"Seqs.Pages":     func(s *flashkit.Sequences) { s.Pages = nil },
		"Seqs.KVStarts":  func(s *flashkit.Sequences) { s.KVStarts = []int32{0, 1, 2} },
	} {
		a := flashkit.NewArgs(p, flashkit.PassForward)
		change(a.Seqs)
		requireProblemError(t, p.Check(flashkit.PassForward, a), field)
	}
	a := flashkit.NewArgs(p, flashkit.PassForward)
	a.Seqs.KVLens[1], a.Seqs.Pages[5] = 4, -1 // a page that no key needs
	require.NoError(t, p.Check(flashkit.PassForward, a))
}

func TestCheckRefusesWhatHasNoBackwardPass(t *testing.T) {
	for field, change := range map[string]func(p *flashkit.Problem){
		"Page":    func(p *flashkit.Problem) { p.Page = 2 },
		"Carry":   func(p *flashkit.Problem) { p.Carry = true },
		"KVDType": func(p *flashkit.Problem) { p.KVDType = flashkit.BFloat16 },
	} {
		p := allFeatures(flashkit.PassBackward)
		change(&p)
		requireProblemError(t, p.Check(flashkit.PassBackward, flashkit.NewArgs(p, flashkit.PassBackward)), field)
	}
}

// Broadcast dimensions and optional gradients are valid.
func TestCheckTakesFeatures(t *testing.T) {
	for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		p := allFeatures(pass)
		for _, name := range []string{"Bias", "DBias", "Mask", "Slopes"} {
			a := flashkit.NewArgs(p, pass)
			for d := range 3 {
				if d == 0 || name != "Slopes" {
					shaped(name, d, 1)(&p, a)
				}
				if name == "Bias" && pass == flashkit.PassBackward {
					requireProblemError(t, p.Check(pass, a), "DBias.shape") // has another shape now
					shaped("DBias", d, 1)(&p, a)
				}
				if name == "DBias" && pass == flashkit.PassBackward {
					requireProblemError(t, p.Check(pass, a), "DBias.shape")
					continue
				}
				require.NoError(t, p.Check(pass, a), "%s %d", name, d)
			}
		}
		a := flashkit.NewArgs(p, pass)
		a.DBias, a.DSink = flashkit.Tensor{}, flashkit.Tensor{}
		require.NoError(t, p.Check(pass, a))
	}
}

// Keys of another type: arguments say it, and all else stays as it is.
func TestCheckMixed(t *testing.T) {
	for _, kv := range []flashkit.DType{flashkit.Float16, flashkit.BFloat16} {
		p := allFeatures(flashkit.PassForward)
		p.KVDType = kv
		a := flashkit.NewArgs(p, flashkit.PassForward)
		require.NoError(t, p.Check(flashkit.PassForward, a))
		for _, x := range flashkit.Arguments() {
			if y := x.Of(a); x.Name == "K" || x.Name == "V" {
				require.Equal(t, kv, y.DType(), x.Name)
			} else if x.Name != "Mask" && x.Name != "Ranges" && !y.IsZero() {
				require.Equal(t, flashkit.Float32, y.DType(), x.Name)
			}
		}
		require.Equal(t, kv, flashkit.ProblemOf(a, p.Band).KVDType)
		for _, other := range []flashkit.DType{flashkit.Float32, flashkit.Float16 + flashkit.BFloat16 - kv, flashkit.Bool} {
			b := *a
			b.V = tensor(other, a.V.Shape())
			requireProblemError(t, p.Check(flashkit.PassForward, &b), "V.dtype")
			b = *a
			b.K = tensor(other, a.K.Shape())
			requireProblemError(t, p.Check(flashkit.PassForward, &b), "K.dtype")
		}
		a.K = flashkit.Bools([]bool{true}, 1, 1, 1, 1)
		require.Zero(t, flashkit.ProblemOf(a, p.Band).KVDType, "the check names the tensor")
		a.Q, a.K = tensor(flashkit.Float16, p.QShape()), tensor(flashkit.BFloat16, p.KShape())
		require.Zero(t, flashkit.ProblemOf(a, p.Band).KVDType)
	}
}

// plainFields are the fields of Problem, and of the structs in it, that are part of
// dense attention in a band.
var plainFields = []string{
	"Batch", "Heads", "KVHeads", "QLen", "KVLen", "Dim", "VDim", "DType", "Scale", "Band.left", "Band.right", "Band.topLeft",
}

// A field of Problem is plain, or it is a feature: else a kernel that knows nothing of
// it would be given it.
func TestFieldsArePlainOrFeatures(t *testing.T) {
	var p flashkit.Problem
	var found flashkit.Feature
	var plain []string
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			name := prefix + v.Type().Field(i).Name
			field := reflect.NewAt(v.Field(i).Type(), v.Field(i).Addr().UnsafePointer()).Elem() // settable
			if field.Kind() == reflect.Struct {
				walk(field, name+".")
				continue
			}
			for _, x := range nonZero(t, field, name) {
				field.Set(x)
				f := p.Features()
				if field.SetZero(); f == 0 {
					if !slices.Contains(plain, name) {
						plain = append(plain, name)
					}
					continue
				}
				require.Equal(t, 1, f.Count(), name)
				require.NotContains(t, plain, name)
				found |= f
			}
		}
	}
	walk(reflect.ValueOf(&p).Elem(), "")
	require.ElementsMatch(t, plainFields, plain, "a field of Problem is neither plain nor counted by Features")
	require.Equal(t, flashkit.AllFeatures, found, "a feature that no field asks for")
	require.Equal(t, "shift,softcap,alibi,bias,mask,sink,dropout,ragged,page,carry,mixed,origin,ranges,int8group,rowmax,keymass", flashkit.AllFeatures.String())
}

// nonZero returns values of a field that ask for something.
func nonZero(t *testing.T, field reflect.Value, name string) (values []reflect.Value) {
	var all []any
	switch field.Kind() {
	case reflect.Bool:
		all = []any{true}
	case reflect.Int:
		all = []any{1, -1, math.MaxInt}
	case reflect.Uint8:
		all = []any{uint8(1)}
	case reflect.Float32:
		all = []any{float32(1), float32(.5), float32(math.SmallestNonzeroFloat32)}
	default:
		t.Fatalf("%s: a field of kind %v, which this test does not know", name, field.Kind())
	}
	for _, x := range all {
		values = append(values, reflect.ValueOf(x).Convert(field.Type()))
	}
	return values
}

// The error of a wrong shape names the dimensions that may be 1.
func TestShapesThatRepeatAreSaid(t *testing.T) {
	for name, want := range map[string]string{
		"Bias":   "flashkit: Bias.shape = [3 4 3 5]: must be [2 4 3 5], or 1 in place of any number but the last",
		"DBias":  "flashkit: DBias.shape = [3 4 3 5]: must be [2 4 3 5]",
		"Slopes": "flashkit: Slopes.shape = [3 4 1 1]: must be [2 4 1 1], or 1 in place of the first number",
		"Ranges": "flashkit: Ranges.shape = [3 4 3 4]: must be [2 4 3 4], or 1 in place of the first or second number",
		"Sink":   "flashkit: Sink.shape = [3 4 1 1]: must be [1 4 1 1]",
	} {
		p := allFeatures(flashkit.PassBackward)
		a := flashkit.NewArgs(p, flashkit.PassBackward)
		shaped(name, 0, 3)(&p, a)
		require.EqualError(t, p.Check(flashkit.PassBackward, a), want)
	}
}
