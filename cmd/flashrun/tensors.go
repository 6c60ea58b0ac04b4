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
	fwd     flashkit.Forward
	bwd     flashkit.Backward // with O and LSE of a forward pass, if the passes need them
	device  *deviceTensors    // nil until a case needs them
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
	t.fwd = flashkit.Forward{Q: in.q.tensor(bhsd), K: in.k.tensor(bhsd), V: in.v.tensor(bhsd), O: out.o.tensor(bhsd), LSE: out.lse.tensor(bhsd)}
	t.bwd = flashkit.Backward{Q: t.fwd.Q, K: t.fwd.K, V: t.fwd.V, O: t.fwd.O, LSE: t.fwd.LSE, DO: in.do.tensor(bhsd),
		DQ: out.dq.tensor(bhsd), DK: out.dk.tensor(bhsd), DV: out.dv.tensor(bhsd)}
	if backward {
		return t, m.frozen.Forward(ctx, p, &t.fwd)
	}
	return t, nil
}

func (b *bench) backward() bool { return slices.Contains(b.passes, flashkit.PassBackward) }

// call runs a kernel on the tensors. A forward pass writes O and LSE again, which
// leaves a backward pass with the same inputs up to rounding.
func (t *tensors) call(ctx context.Context, k flashkit.Kernel) error {
	if k.Pass() == flashkit.PassBackward {
		return k.Backward(ctx, t.problem, &t.bwd)
	}
	return k.Forward(ctx, t.problem, &t.fwd)
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
