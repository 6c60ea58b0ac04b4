package main

import (
	"context"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
) // tensors are a problem's inputs, random normal, and outputs.
type tensors struct {
	problem flashkit.Problem
	args    flashkit.Args  // with O and LSE of a forward pass, if the passes need them
	device  *deviceTensors // nil until a case needs them
}

// A maker makes tensors. A backward pass needs O and LSE: they are computed by a
// copy that learns nothing, so that what is measured, and what dispatch is said to
// choose, is as if no tensors had been made.
type maker struct {
	frozen *dispatch.Dispatcher
	seed   uint64
}

func newMaker(d *dispatch.Dispatcher, seed uint64) maker { return maker{d.Frozen(), seed} }

// tensors makes the tensors of a problem, with those of the backward pass if that
// is to be called.
func (m maker) tensors(ctx context.Context, p flashkit.Problem, backward bool) (*tensors, error) {
	backward = backward && hasBackward(&p)
	t := &tensors{problem: p, args: randomInput(p, m.seed, bhsd, backward).withOutputs(backward)}
	if backward {
		return t, m.frozen.Forward(ctx, p, &t.args)
	}
	return t, nil
}

// hasBackward reports whether a problem has a backward pass.
func hasBackward(p *flashkit.Problem) bool { return p.Features()&flashkit.ForwardFeatures == 0 }

// withOutputs returns the arguments of the passes: the input's, with zeros for all that
// they write. What they also read is the input's again, as a copy.
func (in *input) withOutputs(backward bool) flashkit.Args {
	args := in.args
	for _, a := range flashkit.Arguments() {
		if !writes(&a, &in.problem, backward) {
			continue
		}
		if start := a.Of(&in.args); in.problem.Carry {
			*a.Of(&args) = copied(*start)
			continue
		}
		t, shape := outputLike(&a, &in.args)
		*a.Of(&args) = newTensor(t, shape, in.layout.of(a.Name))
	}
	return args
}

// restart makes what the passes read and write what it was at first.
func (in *input) restart(args *flashkit.Args) {
	if in.problem.Carry {
		restore(&args.O, &in.args.O)
		restore(&args.LSE, &in.args.LSE)
	}
}

// writes reports whether the passes of a problem write an argument.
func writes(a *flashkit.Argument, p *flashkit.Problem, backward bool) bool {
	return (a.Role(p, flashkit.PassForward)|a.Role(p, pass(backward)))&flashkit.Output != 0
}

// pass returns the pass that is the last one to run.
func pass(backward bool) flashkit.Pass {
	if backward {
		return flashkit.PassBackward
	}
	return flashkit.PassForward
}

// outputLike returns the type and shape of what a pass writes: a gradient is like what
// it is one of.
func outputLike(a *flashkit.Argument, args *flashkit.Args) (flashkit.DType, [4]int) {
	shape := args.Q.Shape()
	switch a.Name {
	case "O":
		shape[3] = args.V.Shape()[3]
		return args.Q.DType(), shape
	case "LSE":
		shape[3] = 1
		return flashkit.Float32, shape
	}
	for _, of := range flashkit.Arguments() {
		if "D"+of.Name == a.Name {
			return of.Of(args).DType(), of.Of(args).Shape()
		}
	}
	return 0, [4]int{}
}

// call runs a kernel on the tensors. A forward pass writes O and LSE again, which
// leaves a backward pass with the same inputs up to rounding.
func (t *tensors) call(ctx context.Context, k flashkit.Kernel) error {
	return k.Compute(ctx, t.problem, &t.args)
}

// flops returns the operations of a pass, with the lengths that sequences have.
func (t *tensors) flops(s flashkit.Pass) float64 {
	var c flashkit.Call
	if err := c.Set(t.problem, s, &t.args); err != nil {
		return t.problem.FLOPs(s)
	}
	return c.FLOPs()
}

// outputBytes returns the size of what the passes write.
func (in *input) outputBytes(backward bool) (sum float64) {
	for _, a := range flashkit.Arguments() {
		if writes(&a, &in.problem, backward) {
			sum += bytesOf(outputLike(&a, &in.args))
		}
	}
	return sum
}

// tensorBytes returns the size of a problem's tensors as randomInput makes them, with
// those of the backward pass if that is to be called.
func tensorBytes(p flashkit.Problem, backward bool) (sum float64) {
	for _, a := range flashkit.Arguments() {
		if reads(&a, &p, backward) || writes(&a, &p, backward) {
			sum += bytesOf(a.DType(&p), shapeIn(&a, &p))
		}
	}
	if p.Ragged {
		sum += 8 * float64(p.Batch)
	}
	if p.Page > 0 {
		sum += 4 * float64(p.Batch) * float64(pages(&p))
	}
	return sum
}

// callTiny calls a kernel on one row of one head, so that it has compiled and
// loaded what it needs for any problem, and no measurement includes that.
func (m maker) callTiny(ctx context.Context, k flashkit.Kernel, p flashkit.Problem) error {
	const tinyBytes = 16 << 20 // one row may be longer than memory
	p.Batch, p.Heads, p.KVHeads, p.QLen, p.KVLen = 1, 1, 1, 1, 1
	backward := k.Pass == flashkit.PassBackward
	if k.Fits(p.Ask(k.Pass)) != "" || tensorBytes(p, backward) > tinyBytes || k.Needs != nil && k.Needs(p.Ask(k.Pass)).Host > tinyBytes {
		return nil
	}
	tiny, err := m.tensors(ctx, p, backward)
	if err != nil {
		return err
	}
	return tiny.call(ctx, k)
}
