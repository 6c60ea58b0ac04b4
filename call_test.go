package flashkit_test

import (
	"context"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A call is a fake kernel with valid arguments for its pass. Tests break one
// argument at a time.
type call struct {
	p      flashkit.Problem
	kernel flashkit.Kernel
	calls  int    // how often the kernel was entered
	reason string // what the kernel's Fits says
	failed error  // what the kernel returns

	args []argument
	run  func(ctx context.Context) error
}

// An argument is one tensor of a call and its role.
type argument struct {
	name             string
	t                *flashkit.Tensor
	output, optional bool
}

// arg returns the argument of the given name.
func (c *call) arg(name string) *flashkit.Tensor {
	for _, a := range c.args {
		if a.name == name {
			return a.t
		}
	}
	panic("no argument " + name)
}

// elements returns the number of elements of a shape.
func elements(shape [4]int) int { return shape[0] * shape[1] * shape[2] * shape[3] }

// tensor returns a dense tensor with memory of its own.
func tensor(dtype flashkit.DType, shape [4]int) flashkit.Tensor {
	return view(dtype, make([]float32, elements(shape)), make([]uint16, elements(shape)), shape)
}

// view returns a dense tensor in the one of the two memories that dtype needs.
func view(dtype flashkit.DType, f32 []float32, u16 []uint16, s [4]int) flashkit.Tensor {
	switch dtype {
	case flashkit.Float16:
		return flashkit.F16(u16, s[0], s[1], s[2], s[3])
	case flashkit.BFloat16:
		return flashkit.BF16(u16, s[0], s[1], s[2], s[3])
	}
	return flashkit.F32(f32, s[0], s[1], s[2], s[3])
}

func fakeCall(p flashkit.Problem) *call {
	c := &call{p: p}
	c.kernel = flashkit.Kernel{
		Fits: func(flashkit.Problem) string { return c.reason },
		Cost: func(flashkit.Problem) time.Duration { return 0 },
	}
	return c
}

func forwardCall(p flashkit.Problem) *call {
	c := fakeCall(p)
	f := &flashkit.Forward{
		Q: tensor(p.DType, p.QShape()), K: tensor(p.DType, p.KShape()), V: tensor(p.DType, p.VShape()),
		O: tensor(p.DType, p.OShape()), LSE: tensor(flashkit.Float32, p.LSEShape()),
	}
	c.args = []argument{
		{"Q", &f.Q, false, false}, {"K", &f.K, false, false}, {"V", &f.V, false, false},
		{"O", &f.O, true, false}, {"LSE", &f.LSE, true, true},
	}
	c.kernel.Name = "fake/fwd"
	c.kernel.RunForward = func(context.Context, flashkit.Problem, *flashkit.Forward) error {
		c.calls++
		return c.failed
	}
	c.run = func(ctx context.Context) error { return c.kernel.Forward(ctx, c.p, f) }
	return c
}

func backwardCall(p flashkit.Problem) *call {
	c := fakeCall(p)
	b := &flashkit.Backward{
		Q: tensor(p.DType, p.QShape()), K: tensor(p.DType, p.KShape()), V: tensor(p.DType, p.VShape()),
		O: tensor(p.DType, p.OShape()), LSE: tensor(flashkit.Float32, p.LSEShape()),
		DO: tensor(p.DType, p.OShape()), DLSE: tensor(flashkit.Float32, p.LSEShape()),
		DQ: tensor(p.DType, p.QShape()), DK: tensor(p.DType, p.KShape()), DV: tensor(p.DType, p.VShape()),
	}
	c.args = []argument{
		{"Q", &b.Q, false, false}, {"K", &b.K, false, false}, {"V", &b.V, false, false},
		{"O", &b.O, false, false}, {"LSE", &b.LSE, false, false},
		{"DO", &b.DO, false, false}, {"DLSE", &b.DLSE, false, true},
		{"DQ", &b.DQ, true, false}, {"DK", &b.DK, true, false}, {"DV", &b.DV, true, false},
	}
	c.kernel.Name = "fake/bwd"
	c.kernel.RunBackward = func(context.Context, flashkit.Problem, *flashkit.Backward) error {
		c.calls++
		return c.failed
	}
	c.run = func(ctx context.Context) error { return c.kernel.Backward(ctx, c.p, b) }
	return c
}

// passes are the two ways to make a call.
var passes = map[string]func(flashkit.Problem) *call{"forward": forwardCall, "backward": backwardCall}
