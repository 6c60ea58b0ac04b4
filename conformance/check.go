package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// Check runs the case on the kernel and returns nil, or what went wrong first,
// in this order: the kernel failed, an input was changed, memory outside an
// output was touched or an element of it was not written, a value is out of
// bound, a second run gave other bits. A kernel that does not take the problem
// gives a *flashkit.UnsupportedError.
func (c Case) Check(ctx context.Context, k flashkit.Kernel) error {
	if reason := k.Fits(c.Problem); reason != "" {
		return &flashkit.UnsupportedError{Kernel: k.Name, Problem: c.Problem, Reason: reason}
	}
	in := c.Inputs()
	want, bound, err := c.answer(in)
	if err != nil {
		return err
	}
	return check(ctx, k, in, c.layout, want, bound)
}

func check(ctx context.Context, k flashkit.Kernel, in *Inputs, l layout, want result, bound [5]float64) error {
	a := newArguments(in, l, k.Pass(), want)
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
		if err := compare(out, wanted[i], bound[i]); err != nil {
			return err
		}
	}
	return a.checkAgain(ctx, k)
}

// checkAgain runs the kernel once more, without LSE where it is optional, and
// compares the bits.
func (a *arguments) checkAgain(ctx context.Context, k flashkit.Kernel) error {
	first := a.bits(a.outputs)
	for _, out := range a.outputs {
		out.poison()
	}
	a.fwd.LSE = flashkit.Tensor{}
	if err := a.run(ctx, k); err != nil {
		return fmt.Errorf("second run: %w", err)
	}
	for i, out := range a.outputs {
		if out.name != "lse" && !slices.Equal(first[i], out.bits()) {
			return fmt.Errorf("%s: a second run gave different bits", out.name)
		}
	}
	return nil
}

// arguments are the placed tensors of one call of one kernel.
type arguments struct {
	p       flashkit.Problem
	fwd     flashkit.Forward
	bwd     flashkit.Backward
	inputs  []*placed
	outputs []*placed
}

// newArguments lays the inputs out. The backward pass gets the wanted O and LSE.
func newArguments(in *Inputs, l layout, pass flashkit.Pass, want result) *arguments {
	a, p := &arguments{p: in.p}, in.p
	input := func(name string, t flashkit.DType, shape [4]int, x []float32) flashkit.Tensor {
		placed := place(name, t, shape, l, name == "k" || name == "v")
		placed.set(x)
		a.inputs = append(a.inputs, placed)
		return placed.tensor
	}
	output := func(name string, t flashkit.DType, shape [4]int) flashkit.Tensor {
		placed := place(name, t, shape, l, false)
		a.outputs = append(a.outputs, placed)
		return placed.tensor
	}
	q, k, v := input("q", p.DType, p.QShape(), in.q), input("k", p.DType, p.KShape(), in.k), input("v", p.DType, p.VShape(), in.v)
	if pass == flashkit.PassForward {
		a.fwd = flashkit.Forward{Q: q, K: k, V: v, O: output("o", p.DType, p.OShape()), LSE: output("lse", flashkit.Float32, p.LSEShape())}
		return a
	}
	a.bwd = flashkit.Backward{
		Q: q, K: k, V: v,
		O:   input("o", p.DType, p.OShape(), narrow(want.o)),
		LSE: input("lse", flashkit.Float32, p.LSEShape(), narrow(want.lse)),
		DO:  input("do", p.DType, p.OShape(), in.do),
		DQ:  output("dq", p.DType, p.QShape()),
		DK:  output("dk", p.DType, p.KShape()),
		DV:  output("dv", p.DType, p.VShape()),
	}
	if in.dlse != nil {
		a.bwd.DLSE = input("dlse", flashkit.Float32, p.LSEShape(), in.dlse)
	}
	return a
}

// run calls the kernel. A panic becomes an error, so that one case does not
// take the others down.
func (a *arguments) run(ctx context.Context, k flashkit.Kernel) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	backward := k.Pass() == flashkit.PassBackward
	if backward {
		err = k.Backward(ctx, a.p, &a.bwd)
	} else {
		err = k.Forward(ctx, a.p, &a.fwd)
	}
	switch {
	case err != nil || a.p.Batch > 0:
		return err
	case backward: // Kernel had nothing to call, but a backend may have other doors
		return k.RunBackward(ctx, a.p, &a.bwd)
	}
	return k.RunForward(ctx, a.p, &a.fwd)
}

func (a *arguments) bits(of []*placed) [][]uint32 {
	b := make([][]uint32, len(of))
	for i, x := range of {
		b[i] = x.bits()
	}
	return b
}

func equalBits(x, y [][]uint32) bool { return slices.EqualFunc(x, y, slices.Equal[[]uint32]) }

// compare returns an error naming the worst element of out if any is farther
// from want than bound. Infinities must agree exactly; NaN never does.
func compare(out *placed, want []float64, bound float64) error {
	got, worst, at := out.get(), -1.0, 0
	for i := range want {
		e := math.Abs(got[i] - want[i])
		if got[i] == want[i] {
			e = 0
		} else if math.IsNaN(e) {
			e = math.Inf(1)
		}
		if e > worst {
			worst, at = e, i
		}
	}
	if worst <= bound {
		return nil
	}
	shape := out.tensor.Shape()
	c, r := at%shape[3], at/shape[3]
	return fmt.Errorf("%s[%d,%d,%d,%d] = %g, want %g: off by %.3g, bound %.3g", out.name,
		r/shape[2]/shape[1], r/shape[2]%shape[1], r%shape[2], c, got[at], want[at], worst, bound)
}
