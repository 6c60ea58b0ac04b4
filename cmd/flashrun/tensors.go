package main

import (
	"context"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// tensors are a problem's inputs, random normal, and outputs.
type tensors struct {
	problem flashkit.Problem
	in      *input
	out     *outputs
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
	t := &tensors{problem: p, in: randomInput(p, m.seed, bhsd, backward), out: newOutputs(p, backward)}
	in, out := t.in, t.out
	t.args = newArgs(in, out, bhsd)
	if backward {
		return t, m.frozen.Forward(ctx, p, &t.args)
	}
	return t, nil
}

// newArgs returns the arguments of both passes on arrays of a layout.
func newArgs(in *input, out *outputs, l layout) flashkit.Args {
	return flashkit.Args{
		Q: in.q.tensor(l), K: in.k.tensor(l), V: in.v.tensor(l), O: out.o.tensor(l), LSE: out.lse.tensor(l),
		DO: in.do.tensor(l), DQ: out.dq.tensor(l), DK: out.dk.tensor(l), DV: out.dv.tensor(l),
	}
}

func (b *bench) backward() bool { return slices.Contains(b.passes, flashkit.PassBackward) }

// call runs a kernel on the tensors. A forward pass writes O and LSE again, which
// leaves a backward pass with the same inputs up to rounding.
func (t *tensors) call(ctx context.Context, k flashkit.Kernel) error {
	return k.Compute(ctx, t.problem, &t.args)
}

// outputBytes returns the size of what the passes write.
func outputBytes(p flashkit.Problem, backward bool) float64 {
	rows, keys, elem := float64(p.Batch)*float64(p.Heads)*float64(p.QLen), float64(p.Batch)*float64(p.KVHeads)*float64(p.KVLen), float64(p.DType.Size())
	bytes := rows * (float64(p.VDim)*elem + 4)
	if backward {
		bytes += (rows*float64(p.Dim) + keys*(float64(p.Dim)+float64(p.VDim))) * elem
	}
	return bytes
}

// tensorBytes returns the size of a problem's tensors, with those of the backward
// pass if that is to be called.
func tensorBytes(p flashkit.Problem, backward bool) float64 {
	if backward {
		return p.Bytes(flashkit.PassBackward)
	}
	return p.Bytes(flashkit.PassForward)
}
