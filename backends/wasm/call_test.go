package wasm

import (
	"context"
	"strings"

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
		Q: tensor(p.DType, p.QShape(), true), K: tensor(p.KVType(), p.KShape(), true), V: tensor(p.KVType(), p.VShape(), true),
		O: tensor(p.DType, p.OShape(), false), LSE: tensor(flashkit.Float32, p.LSEShape(), false),
	}
	c.bwd = flashkit.Args{
		Q: c.fwd.Q, K: c.fwd.K, V: c.fwd.V, O: c.fwd.O, LSE: c.fwd.LSE, DO: tensor(p.DType, p.OShape(), true),
		DQ: tensor(p.DType, p.QShape(), false), DK: tensor(p.DType, p.KShape(), false), DV: tensor(p.DType, p.VShape(), false),
	}
	c.addFeatures(tensor)
	return c
}

// goldenSeed is the dropout seed.
const goldenSeed uint64 = 0x123456789abcdef

// addFeatures adds the tensors of the problem's features: bias and mask by row and key, shared by all
// heads, and slopes and sinks by head.
func (c *call) addFeatures(tensor func(t flashkit.DType, s [4]int, random bool) flashkit.Tensor) {
	p, pairs, heads := &c.p, [4]int{1, 1, c.p.QLen, c.p.KVLen}, [4]int{1, c.p.Heads, 1, 1}
	a := &c.fwd
	if a.Seed = goldenSeed; p.Score.Bias {
		a.Bias = tensor(flashkit.Float32, pairs, true)
		c.bwd.DBias = tensor(flashkit.Float32, pairs, false)
	}
	if p.Score.Mask {
		noise, seen := tensor(flashkit.Float32, pairs, true), make([]bool, p.QLen*p.KVLen)
		for i, v := range noise.Float32s() {
			seen[i] = v > -.5
		}
		a.Mask = flashkit.Bools(seen, pairs[0], pairs[1], pairs[2], pairs[3])
	}
	if p.Score.ALiBi {
		a.Slopes = tensor(flashkit.Float32, heads, true)
	}
	if p.Score.Sink {
		a.Sink = tensor(flashkit.Float32, heads, true)
	}
	c.bwd.Bias, c.bwd.Mask, c.bwd.Slopes, c.bwd.Sink, c.bwd.Seed = a.Bias, a.Mask, a.Slopes, a.Sink, a.Seed
}

// within returns p with rows limited to the kernel's maximum.
func within(k *flashkit.Kernel, p flashkit.Problem) flashkit.Problem {
	if strings.HasPrefix(k.Name, "wasm/decode") {
		p.QLen = min(p.QLen, headRows/max(1, p.Heads/max(1, p.KVHeads)))
	}
	return p
}

func (c *call) run(ctx context.Context, k flashkit.Kernel) error {
	if k.Pass == flashkit.PassBackward {
		return k.Compute(ctx, c.p, &c.bwd)
	}
	return k.Compute(ctx, c.p, &c.fwd)
}
