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
	calls  int    // number of runs
	reason string // returned by Refuses
	failed error  // returned by Run

	all  *flashkit.Args
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
	if dtype == flashkit.Int32 {
		return flashkit.Int32s(make([]int32, elements(shape)), shape[0], shape[1], shape[2], shape[3])
	}
	if dtype == flashkit.Int8 {
		return flashkit.Int8s(make([]int8, elements(shape)), shape[0], shape[1], shape[2], shape[3])
	}
	if dtype == flashkit.Bool {
		return flashkit.Bools(make([]bool, elements(shape)), shape[0], shape[1], shape[2], shape[3])
	}
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

// fakeCall returns a call of a fake kernel with all arguments of a dense problem.
func fakeCall(p flashkit.Problem, pass flashkit.Pass) *call {
	c, args := &call{p: p}, new(flashkit.Args)
	c.kernel = flashkit.Kernel{
		Name: "fake/" + pass.String(), Pass: pass, Takes: flashkit.AllFeatures,
		Refuses: func(*flashkit.Call) string { return c.reason },
		Cost:    func(*flashkit.Call) time.Duration { return 0 },
		Run: func(context.Context, *flashkit.Call) error {
			c.calls++
			return c.failed
		},
	}
	for _, a := range flashkit.Arguments() {
		if role := a.Role(&p, pass); role != 0 {
			t := a.Of(args)
			*t = tensor(a.DType(&p), a.Shape(&p))
			c.args = append(c.args, argument{a.Name, t, role&flashkit.Output != 0, role&flashkit.Optional != 0})
		}
	}
	c.all = args
	c.run = func(ctx context.Context) error { return c.kernel.Compute(ctx, c.p, args) }
	return c
}

func forwardCall(p flashkit.Problem) *call { return fakeCall(p, flashkit.PassForward) }

func backwardCall(p flashkit.Problem) *call { return fakeCall(p, flashkit.PassBackward) }

// passes are the two ways to make a call.
var passes = map[string]func(flashkit.Problem) *call{"forward": forwardCall, "backward": backwardCall}
