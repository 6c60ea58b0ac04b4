package input

import (
	"context"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// Tensors are a problem's inputs, which are random and normally distributed, and its outputs.
type Tensors struct {
	Problem flashkit.Problem
	Args    flashkit.Args  // with O and LSE of a forward pass if a backward pass follows
	Device  *DeviceTensors // nil until the first case on the device
}

// A Maker makes tensors. Inputs of a backward pass include O and LSE. A frozen dispatcher computes
// O and LSE, so that this forward pass does not affect measurements and choices.
type Maker struct {
	Frozen *dispatch.Dispatcher
	seed   uint64
}

// NewMaker returns a maker of random tensors.
func NewMaker(d *dispatch.Dispatcher, seed uint64) Maker { return Maker{d.Frozen(), seed} }

// Make makes the tensors of a problem. If backward is true, they include the tensors of the
// backward pass.
func (m Maker) Make(ctx context.Context, p flashkit.Problem, backward bool) (*Tensors, error) {
	backward = backward && HasBackward(&p)
	t := &Tensors{Problem: p, Args: Random(p, m.seed, BHSD, backward).WithOutputs(backward)}
	if backward {
		return t, m.Frozen.Forward(ctx, p, &t.Args)
	}
	return t, nil
}

// HasBackward reports whether a problem has a backward pass.
func HasBackward(p *flashkit.Problem) bool { return p.Features()&flashkit.ForwardFeatures == 0 }

// WithOutputs returns the input's arguments with zero tensors for all outputs. With Carry, O,
// LSE and RowMax are instead copies of the input's.
func (in *Input) WithOutputs(backward bool) flashkit.Args {
	args := in.Args
	for _, a := range flashkit.Arguments() {
		if !writes(&a, &in.Problem, backward) {
			continue
		}
		if start := a.Of(&in.Args); a.Role(&in.Problem, flashkit.PassForward)&flashkit.Input != 0 {
			*a.Of(&args) = copied(*start)
			continue
		}
		t, shape := outputLike(&a, in)
		*a.Of(&args) = NewTensor(t, shape, in.Layout.Of(a.Name))
	}
	return args
}

// Restart restores O, LSE and RowMax of earlier keys, which a pass with Carry overwrites.
func (in *Input) Restart(args *flashkit.Args) {
	if in.Problem.Carry {
		restore(&args.O, &in.Args.O)
		restore(&args.LSE, &in.Args.LSE)
		restore(&args.RowMax, &in.Args.RowMax)
	}
}

// writes reports whether the passes of a problem write an argument.
func writes(a *flashkit.Argument, p *flashkit.Problem, backward bool) bool {
	return (a.Role(p, flashkit.PassForward)|a.Role(p, pass(backward)))&flashkit.Output != 0
}

// pass returns the last pass of a computation: backward if there is a backward pass, else forward.
func pass(backward bool) flashkit.Pass {
	if backward {
		return flashkit.PassBackward
	}
	return flashkit.PassForward
}

// outputLike returns the type and shape of an output. A gradient has the type and shape of its
// argument, such as dQ of Q.
func outputLike(a *flashkit.Argument, in *Input) (flashkit.DType, [4]int) {
	args := &in.Args
	shape := args.Q.Shape()
	switch a.Name {
	case "O":
		shape[3] = args.V.Shape()[3]
		return args.Q.DType(), shape
	case "KeyMass":
		return flashkit.Float32, a.Shape(&in.Problem)
	case "LSE", "RowMax":
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

// Call runs a kernel on the tensors. A forward pass writes O and LSE again, equal up to rounding,
// so it does not change the inputs of a backward pass.
func (t *Tensors) Call(ctx context.Context, k flashkit.Kernel) error {
	return k.Compute(ctx, t.Problem, &t.Args)
}

// Flops returns the operations of a pass for the actual sequence lengths.
func (t *Tensors) Flops(s flashkit.Pass) float64 {
	var c flashkit.Call
	if err := c.Set(t.Problem, s, &t.Args); err != nil {
		return t.Problem.FLOPs(s)
	}
	return c.FLOPs()
}

// OutputBytes returns the size of the outputs of the passes.
func (in *Input) OutputBytes(backward bool) (sum float64) {
	for _, a := range flashkit.Arguments() {
		if writes(&a, &in.Problem, backward) {
			sum += bytesOf(outputLike(&a, in))
		}
	}
	return sum
}

// Bytes returns the size of a problem's tensors as Random makes them. If backward is true, they
// include the tensors of the backward pass.
func Bytes(p flashkit.Problem, backward bool) (sum float64) {
	for _, a := range flashkit.Arguments() {
		if Reads(&a, &p, backward) || writes(&a, &p, backward) {
			sum += bytesOf(a.DType(&p), ShapeIn(&a, &p))
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

// CallTiny calls a kernel on one row of one head. This call compiles and loads the kernel before
// measurements. CallTiny does nothing if the call would take too much memory.
func (m Maker) CallTiny(ctx context.Context, k flashkit.Kernel, p flashkit.Problem) error {
	const tinyBytes = 16 << 20 // even one row may exceed memory
	p.Batch, p.Heads, p.KVHeads, p.QLen, p.KVLen = 1, 1, 1, 1, 1
	backward := k.Pass == flashkit.PassBackward
	if k.Fits(p.Ask(k.Pass)) != "" || Bytes(p, backward) > tinyBytes || k.Needs != nil && k.Needs(p.Ask(k.Pass)).Host > tinyBytes {
		return nil
	}
	tiny, err := m.Make(ctx, p, backward)
	if err != nil {
		return err
	}
	return tiny.Call(ctx, k)
}
