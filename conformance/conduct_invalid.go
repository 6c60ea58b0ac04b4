package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
)

// invalidArguments checks that invalid arguments give a *flashkit.ProblemError and leave the
// outputs unchanged. A kernel that supports no features must refuse invalid features with the same
// error, not with a *flashkit.UnsupportedError.
func invalidArguments(ctx context.Context, k flashkit.Kernel) error {
	newArgs, err := prepare(k, 0)
	if err != nil {
		return err
	}
	for _, mistake := range mistakes {
		if err := refused(ctx, k, newArgs(), mistake); err != nil {
			return err
		}
	}
	for _, of := range featureMistakes {
		if k.Pass == flashkit.PassBackward && of.layout == paged {
			continue
		}
		for _, mistake := range of.mistakes {
			if err := refused(ctx, k, withFeatures(k.Pass, of.layout), mistake); err != nil {
				return err
			}
		}
	}
	return nil
}

// A mistake changes valid arguments into invalid ones.
type mistake struct {
	name string
	make func(a *arguments)
}

func refused(ctx context.Context, k flashkit.Kernel, a *arguments, m mistake) error {
	if err := a.p.Check(k.Pass, &a.args); err != nil {
		return fmt.Errorf("before %s: %w", m.name, err)
	}
	before := a.bits(a.outputs)
	m.make(a)
	var wrong *flashkit.ProblemError
	if err := a.run(ctx, k); !errors.As(err, &wrong) {
		return fmt.Errorf("%s gave %v, want a *flashkit.ProblemError", m.name, err)
	}
	if !equalBits(before, a.bits(a.outputs)) {
		return fmt.Errorf("%s: refused, but an output was written", m.name)
	}
	return nil
}

// withFeatures returns valid arguments of a small problem in layout l. The problem has all features
// that have a backward pass.
func withFeatures(pass flashkit.Pass, l layout) *arguments {
	p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 7, Dim: 8, VDim: 8}
	setParameters(&p, flashkit.AllFeatures&^flashkit.ForwardFeatures)
	in := Case{Name: "invalid", Problem: p}.Inputs()
	want := result{o: make([]float64, len(in.do)), lse: make([]float64, size(p.LSEShape()))}
	return newArguments(in, l, pass, want)
}

var mistakes = []mistake{
	{"a negative batch", func(a *arguments) { a.p.Batch = -1 }},
	{"no heads", func(a *arguments) { a.p.Heads, a.p.KVHeads = 0, 0 }},
	{"key heads that do not divide the heads", func(a *arguments) { a.p.KVHeads = 3 }},
	{"a length whose products overflow", func(a *arguments) { a.p.QLen = math.MaxInt / 2 }},
	{"a head dim of 0", func(a *arguments) { a.p.Dim = 0 }},
	{"an unknown type", func(a *arguments) { a.p.DType = 77 }},
	{"an unknown type of keys", func(a *arguments) { a.p.KVDType = 77 }},
	{"keys of another type than the problem says", func(a *arguments) { a.p.KVDType = flashkit.BFloat16 }},
	{"a NaN scale", func(a *arguments) { a.p.Scale = nan }},
	{"a negative scale", func(a *arguments) { a.p.Scale = -1 }},
	{"a window of -2", func(a *arguments) { a.p.Band = flashkit.Window(-2, 0) }},
	{"keys of another length", func(a *arguments) { a.p.KVLen++ }},
	{"a negative number of workers", func(a *arguments) { a.args.Workers = -1 }},
	{"a missing Q", func(a *arguments) { a.args.Q = flashkit.Tensor{} }},
	{"a Q that is too short", func(a *arguments) {
		q := a.inputs[0].tensor
		long := q.WithStrides(q.Strides()[0], q.Strides()[1], q.Strides()[2]+1)
		a.args.Q = long
	}},
	{"a negative stride", func(a *arguments) {
		q := a.inputs[0].tensor.WithStrides(1, 1, -1)
		a.args.Q = q
	}},
	{"an output of stride 0", func(a *arguments) {
		a.args.O = a.args.O.WithStrides(0, 0, 0)
		a.args.DQ = a.args.DQ.WithStrides(0, 0, 0)
	}},
	{"an output that is an input", func(a *arguments) {
		a.args.O = a.args.Q
		a.args.DQ = a.args.Q
	}},
}

// featureMistakes are mistakes in features. Each group has a layout whose arguments contain the
// fields that the mistakes change.
var featureMistakes = []struct {
	layout   layout
	mistakes []mistake
}{
	{padded, []mistake{
		{"a dropout of 1", func(a *arguments) { a.p.Score.Dropout = 1 }},
		{"no sequences", func(a *arguments) { a.args.Seqs = nil }},
		{"sequences of a dense problem", func(a *arguments) { a.p.Ragged = false }},
		{"a negative length", func(a *arguments) { a.args.Seqs.QLens[1] = -1 }},
		{"a length above the tensor", func(a *arguments) { a.args.Seqs.KVLens[0] = int32(a.p.KVLen) + 1 }},
		{"a length for half the sequences", func(a *arguments) { a.args.Seqs.QLens = a.args.Seqs.QLens[:1] }},
		{"pages that the problem does not have", func(a *arguments) { a.args.Seqs.Pages = []int32{0, 0} }},
		{"a bias of half the heads", func(a *arguments) { shape(&a.args.Bias, 1, 2) }},
		{"a bias of half the rows", func(a *arguments) { shape(&a.args.Bias, 2, a.p.QLen/2) }},
		{"a bias of one key", func(a *arguments) { shape(&a.args.Bias, 3, 1) }},
		{"a mask of half the heads", func(a *arguments) { shape(&a.args.Mask, 1, 2) }},
		{"ranges of half the heads", func(a *arguments) { shape(&a.args.Ranges, 1, 2) }},
		{"three ends of ranges", func(a *arguments) { shape(&a.args.Ranges, 3, 3) }},
		{"three ranges", func(a *arguments) { a.p.Score.Ranges = 3 }},
		{"a range that begins before the first key", func(a *arguments) { a.args.Ranges.Int32s()[0] = -1 }},
		{"a range that ends after the last key", func(a *arguments) { a.args.Ranges.Int32s()[3] = int32(a.p.KVLen) + 1 }},
		{"a range that ends before it begins", func(a *arguments) { copy(a.args.Ranges.Int32s(), []int32{3, 2, 4, 5}) }},
		{"ranges that cross", func(a *arguments) { copy(a.args.Ranges.Int32s(), []int32{1, 4, 3, 5}) }},
		{"ranges out of order", func(a *arguments) { copy(a.args.Ranges.Int32s(), []int32{4, 5, 1, 2}) }},
		{"missing ranges", func(a *arguments) { a.args.Ranges = flashkit.Tensor{} }},
		{"ranges of a problem without ranges", func(a *arguments) { a.p.Score.Ranges = 0 }},
		{"a slope for each key head", func(a *arguments) { shape(&a.args.Slopes, 1, 2) }},
		{"a sink for each key head", func(a *arguments) { shape(&a.args.Sink, 1, 2) }},
		{"a missing bias", func(a *arguments) { a.args.Bias = flashkit.Tensor{} }},
		{"a mask that nobody asked for", func(a *arguments) { a.p.Score.Mask = false }},
		{"a gradient of the bias in another shape", func(a *arguments) { // the forward pass has no DBias and gets a missing O instead
			if shape(&a.args.DBias, 0, 1); a.args.DBias.IsZero() {
				a.args.O = flashkit.Tensor{}
			}
		}},
		{"pages, or a backward pass of them", func(a *arguments) { a.p.Page = 4 }},
		{"no earlier LSE, or a backward pass with it", func(a *arguments) { a.p.Carry, a.args.LSE = true, flashkit.Tensor{} }},
	}},
	{padded, numberMistakes()},
	{packed, []mistake{
		{"a negative start", func(a *arguments) { a.args.Seqs.QStarts[0] = -1 }},
		{"starts that do not rise", func(a *arguments) { a.args.Seqs.KVStarts[1] = 0 }},
		{"a start beyond the tensor", func(a *arguments) { a.args.Seqs.QStarts[2] = int32(a.args.Q.Shape()[2]) + 1 }},
		{"a sequence longer than the longest", func(a *arguments) { a.p.QLen-- }},
		{"a start too few", func(a *arguments) { a.args.Seqs.KVStarts = a.args.Seqs.KVStarts[:2] }},
		{"lengths beside starts", func(a *arguments) { a.args.Seqs.QLens = []int32{1, 1} }},
	}},
	{paged, []mistake{
		{"a page beyond the pool", func(a *arguments) { a.args.Seqs.Pages[0] = int32(a.args.K.Shape()[0]) }},
		{"a negative page", func(a *arguments) { a.args.Seqs.Pages[0] = -1 }},
		{"a page table that is no multiple of the batch", func(a *arguments) { a.args.Seqs.Pages = a.args.Seqs.Pages[1:] }},
		{"more keys than pages", func(a *arguments) { a.args.Seqs.Pages = a.args.Seqs.Pages[:2] }},
		{"pages without lengths", func(a *arguments) { a.args.Seqs.KVLens = nil }},
		{"pages of another size", func(a *arguments) { a.p.Page++ }},
	}},
}

// numberMistakes returns two mistakes for each float32 parameter of a problem: a negative number
// and NaN.
func numberMistakes() (list []mistake) {
	for _, x := range flashkit.Parameters() {
		if _, ok := x.Of(new(flashkit.Problem)).(*float32); ok {
			list = append(list, mistake{"a negative " + x.Name, func(a *arguments) { setParameter(&a.p, &x, -.5) }},
				mistake{"a NaN " + x.Name, func(a *arguments) { setParameter(&a.p, &x, nan) }})
		}
	}
	return list
}

// shape replaces t, a dense tensor, by a tensor over the same memory, with dimension d set to n.
func shape(t *flashkit.Tensor, d, n int) {
	s := t.Shape()
	s[d] = n
	switch {
	case t.IsZero():
	case t.DType() == flashkit.Bool:
		*t = flashkit.Bools(t.Bools(), s[0], s[1], s[2], s[3])
	case t.DType() == flashkit.Int32:
		*t = flashkit.Int32s(t.Int32s(), s[0], s[1], s[2], s[3])
	default:
		*t = flashkit.F32(t.Float32s(), s[0], s[1], s[2], s[3])
	}
}
