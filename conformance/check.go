package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// Check runs the case on the kernel and returns the first failure, or nil if the kernel passes.
// Check looks for failures in this order: an error returned by the kernel, a changed input, a write
// outside the outputs, an unwritten element, a result outside its bound, and different bits in a
// further run. Check returns a *flashkit.UnsupportedError if the kernel does not support the
// problem.
func (c Case) Check(ctx context.Context, k flashkit.Kernel) error {
	in := c.Inputs()
	if err := unsupported(k, in, c.layout); err != nil {
		return err
	}
	want, bound, err := c.answer(in)
	if err != nil {
		return err
	}
	return check(ctx, k, in, c.layout, want, bound)
}

// unsupported returns a *flashkit.UnsupportedError if the kernel does not support the problem in
// layout l.
func unsupported(k flashkit.Kernel, in *Inputs, l layout) error {
	p := newSides(in, l).p
	reason := k.Fits(p.Ask(k.Pass))
	if reason == "" && k.Pass == flashkit.PassBackward && !hasBackward(p) {
		reason = "there is no backward pass"
	}
	if reason != "" {
		return &flashkit.UnsupportedError{Kernel: k.Name, Problem: p, Reason: reason}
	}
	return nil
}

func check(ctx context.Context, k flashkit.Kernel, in *Inputs, l layout, want result, bound bounds) error {
	a := newArguments(in, l, k.Pass, want)
	before := a.bits(a.inputs)
	if err := a.run(ctx, k); err != nil {
		return err
	}
	if !equalBits(before, a.bits(a.inputs)) {
		return fmt.Errorf("an input was changed")
	}
	wanted := want.arrays()
	for _, out := range a.outputs {
		if err := out.checkGuards(); err != nil {
			return err
		}
		i := slices.Index(outputNames[:], out.name)
		if err := compare(out, i, wanted[i], bound[i]); err != nil {
			return err
		}
	}
	return a.checkAgain(ctx, k)
}

// checkAgain runs the kernel once or twice more and compares the outputs' bits with the first run's
// bits. The last run has one worker and omits the optional outputs: DBias, DSink, and LSE of a
// forward pass without Carry.
func (a *arguments) checkAgain(ctx context.Context, k flashkit.Kernel) error {
	first := a.bits(a.outputs)
	if !a.args.DBias.IsZero() || !a.args.DSink.IsZero() { // LSE alone does not justify another run
		if err := a.checkBits(ctx, k, first); err != nil {
			return err
		}
	}
	a.args.Workers, a.args.DBias, a.args.DSink = 1, flashkit.Tensor{}, flashkit.Tensor{}
	if k.Pass == flashkit.PassForward && !a.p.Carry {
		a.args.LSE = flashkit.Tensor{}
	}
	return a.checkBits(ctx, k, first)
}

// checkBits runs the kernel once more and compares the bits of the requested outputs with first.
func (a *arguments) checkBits(ctx context.Context, k flashkit.Kernel, first [][]uint32) error {
	for _, out := range a.outputs {
		out.poison()
	}
	if err := a.run(ctx, k); err != nil {
		return fmt.Errorf("another run: %w", err)
	}
	for i, out := range a.outputs {
		if !out.of(&a.args).IsZero() && !slices.Equal(first[i], out.bits()) {
			return fmt.Errorf("%s: another run gave different bits", out.name)
		}
	}
	return nil
}

// arguments holds the tensors of one call, with the memory around the tensors.
type arguments struct {
	p       flashkit.Problem
	args    flashkit.Args
	inputs  []*placed
	outputs []*placed
}

// newArguments places the inputs in memory, in layout l, and allocates the outputs. The backward
// pass reads O and LSE from want.
func newArguments(in *Inputs, l layout, pass flashkit.Pass, want result) *arguments {
	x := newSides(in, l)
	a := &arguments{p: x.p}
	a.args.Seed, a.args.Origin, a.args.Seqs = in.seed, in.origin, x.seqs
	for _, arg := range flashkit.Arguments() {
		role, values := arg.Role(&x.p, pass), in.array(arg.Name, pass, want)
		if role == 0 || role == flashkit.Input|flashkit.Optional && values == nil {
			continue
		}
		y := x.place(in, &arg, l)
		y.of = arg.Of
		y.poison()
		*arg.Of(&a.args) = y.tensor
		if role&flashkit.Output == 0 {
			y.set(values)
			a.inputs = append(a.inputs, y)
			continue
		}
		if y.start = values; values != nil {
			y.set(values)
		}
		a.outputs = append(a.outputs, y)
	}
	return a
}

// run calls the kernel. It turns a panic into an error, so that other cases still run.
func (a *arguments) run(ctx context.Context, k flashkit.Kernel) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if err := k.Compute(ctx, a.p, &a.args); err != nil || a.p.Batch > 0 {
		return err
	}
	var c flashkit.Call // Compute does not call Run for an empty batch, but a backend may call Run directly
	if err := c.Set(a.p, k.Pass, &a.args); err != nil {
		return err
	}
	return k.Run(ctx, &c)
}

func (a *arguments) bits(of []*placed) [][]uint32 {
	b := make([][]uint32, len(of))
	for i, x := range of {
		b[i] = x.bits()
	}
	return b
}

func equalBits(x, y [][]uint32) bool { return slices.EqualFunc(x, y, slices.Equal[[]uint32]) }

// compare returns an error if an element of out differs from want by more than the element's bound.
// n is the output's index in outputNames. The error names the worst element and counts the wrong
// elements. Infinities must be equal, and NaN matches only NaN.
func compare(out *placed, n int, want []float64, bound float64) error {
	for _, at := range out.rest {
		if x := out.value(at); x != out.filler {
			return fmt.Errorf("%s is %g beyond the end of a sequence, %d elements from its start, want %g", out.name, x, at-guard, out.filler)
		}
	}
	worst, at, got := math.Inf(-1), -1, 0.0 // worst is the largest error minus its bound
	var wrong misses
	for i, place := range out.index {
		if place < 0 {
			continue
		}
		x := out.value(place)
		e := difference(x, want[i]) - boundOf(n, want[i], bound)
		if e > 0 {
			wrong.add(i / out.dense[3])
		}
		if e > worst {
			worst, at, got = e, i, x
		}
	}
	if worst <= 0 || at < 0 {
		return nil
	}
	shape := out.dense
	c, r := at%shape[3], at/shape[3]
	return fmt.Errorf("%s[%d,%d,%d,%d] = %g, want %g: off by %.3g, bound %.3g; %s", out.name,
		r/shape[2]/shape[1], r/shape[2]%shape[1], r%shape[2], c, got, want[at], difference(got, want[at]), boundOf(n, want[at], bound), wrong.of(out))
}

// difference returns |x-want|. The difference of two NaNs is 0. The difference is +Inf if one
// number is NaN, or if an infinity meets an unequal number.
func difference(x, want float64) float64 {
	switch {
	case x == want || x != x && want != want:
		return 0
	case x != x || want != want || math.IsInf(x-want, 0):
		return math.Inf(1)
	}
	return math.Abs(x - want)
}
