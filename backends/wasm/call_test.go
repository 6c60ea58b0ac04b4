package wasm

import (
	"context"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A call is a problem with inputs and outputs, ready to run on any kernel.
type call struct {
	p   flashkit.Problem
	fwd flashkit.Args
	bwd flashkit.Args
}

// newCall returns a call of p whose inputs are noise in [-1, 1).
func newCall(p flashkit.Problem) *call {
	state := uint32(1)
	tensor := func(t flashkit.DType, s [4]int, random bool) flashkit.Tensor {
		n := s[0] * s[1] * s[2] * s[3]
		f, u := make([]float32, n), make([]uint16, n)
		for i := range f {
			if random {
				state = state*1664525 + 1013904223
				f[i] = float32(state>>8)/(1<<23) - 1
			}
			if u[i] = half.ToF16(f[i]); t == flashkit.BFloat16 {
				u[i] = half.ToBF16(f[i])
			}
		}
		switch t {
		case flashkit.Float16:
			return flashkit.F16(u, s[0], s[1], s[2], s[3])
		case flashkit.BFloat16:
			return flashkit.BF16(u, s[0], s[1], s[2], s[3])
		}
		return flashkit.F32(f, s[0], s[1], s[2], s[3])
	}
	c := &call{p: p}
	c.fwd = flashkit.Args{
		Q: tensor(p.DType, p.QShape(), true), K: tensor(p.DType, p.KShape(), true), V: tensor(p.DType, p.VShape(), true),
		O: tensor(p.DType, p.OShape(), false), LSE: tensor(flashkit.Float32, p.LSEShape(), false),
	}
	c.bwd = flashkit.Args{
		Q: c.fwd.Q, K: c.fwd.K, V: c.fwd.V, O: c.fwd.O, LSE: c.fwd.LSE, DO: tensor(p.DType, p.OShape(), true),
		DQ: tensor(p.DType, p.QShape(), false), DK: tensor(p.DType, p.KShape(), false), DV: tensor(p.DType, p.VShape(), false),
	}
	return c
}

func (c *call) run(ctx context.Context, k flashkit.Kernel) error {
	if k.Pass == flashkit.PassBackward {
		return k.Compute(ctx, c.p, &c.bwd)
	}
	return k.Compute(ctx, c.p, &c.fwd)
}
