package flashkit_test

import (
	"math"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/stretchr/testify/require"
)

// Unusual tensors that the check lets through.

func TestCheckTakesBSHD(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		*a.t = a.t.AsBSHD()
		requireTaken(t, c)
	})
}

func TestCheckTakesGaps(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		s := a.t.Shape()
		row := s[3] + 3
		head := s[2]*row + 5
		memory := [4]int{1, 1, s[0], s[1] * head}
		wide := tensor(a.t.DType(), memory)
		*a.t = view(a.t.DType(), wide.Float32s(), wide.Uint16s(), s).WithStrides(s[1]*head, head, row)
		requireTaken(t, c)
	})
}

func TestCheckTakesExpandedInputs(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		if a.output {
			return
		}
		one := tensor(a.t.DType(), [4]int{1, 1, 1, a.t.Shape()[3]})
		*a.t = view(a.t.DType(), one.Float32s(), one.Uint16s(), a.t.Shape()).WithStrides(0, 0, 0)
		requireTaken(t, c)
	})
}

// The stride of a dimension of size 1 is never used.
func TestCheckTakesSenselessStridesOfSizeOne(t *testing.T) {
	senseless := []int{0, -1, math.MaxInt, math.MinInt}
	for _, newCall := range passes {
		for d := range 3 {
			p := small()
			switch d {
			case 0:
				p.Batch = 1
			case 1:
				p.Heads, p.KVHeads = 1, 1
			case 2:
				p.QLen, p.KVLen = 1, 1
			}
			for _, stride := range senseless {
				c := newCall(p)
				for _, a := range c.args {
					s := a.t.Strides()
					s[d] = stride
					*a.t = a.t.WithStrides(s[0], s[1], s[2])
				}
				requireTaken(t, c)
			}
		}
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1}
		c := newCall(p)
		for _, a := range c.args {
			*a.t = a.t.WithStrides(-5, 0, -7)
		}
		requireTaken(t, c)
	}
}

func TestCheckTakesNothing(t *testing.T) {
	for _, newCall := range passes {
		for name, empty := range map[string]func(p *flashkit.Problem){
			"no batch":           func(p *flashkit.Problem) { p.Batch = 0 },
			"no queries":         func(p *flashkit.Problem) { p.QLen = 0 },
			"no keys":            func(p *flashkit.Problem) { p.KVLen = 0 },
			"no queries or keys": func(p *flashkit.Problem) { p.QLen, p.KVLen = 0, 0 },
		} {
			p := small()
			empty(&p)
			c := newCall(p)
			for _, a := range c.args {
				if elements(a.t.Shape()) == 0 {
					*a.t = view(a.t.DType(), nil, nil, a.t.Shape()).WithStrides(0, -1, 1<<20)
				}
			}
			if name == "no keys" || name == "no queries" && c.kernel.Pass == flashkit.PassBackward {
				requireTaken(t, c)
			} else { // no output holds an element, so there is nothing to do
				require.NoError(t, c.run(t.Context()), name)
				require.Zero(t, c.calls, name)
			}
			// An empty tensor is still a tensor: the zero Tensor is refused.
			for _, a := range c.args {
				if elements(a.t.Shape()) == 0 && !a.optional {
					*a.t = flashkit.Tensor{}
					c.calls = 0
					requireRefused(t, c, a.name)
					break
				}
			}
			require.Zero(t, c.calls, name)
		}
	}
}

// Many models compute Q, K and V with one product, row by row: [B, N, 3, H, D].
// The three views interleave without sharing an element, as inputs and, in the
// backward pass, as outputs.
func TestCheckTakesPackedQKV(t *testing.T) {
	p := flashkit.Problem{Batch: 2, Heads: 3, KVHeads: 3, QLen: 4, KVLen: 4, Dim: 5, VDim: 5}
	packed := func(c *call, names ...string) {
		memory := make([]float32, elements([4]int{p.Batch, p.QLen, 3 * p.Heads, p.Dim}))
		row := 3 * p.Heads * p.Dim
		for i, name := range names {
			x := view(flashkit.Float32, memory[i*p.Heads*p.Dim:], nil, p.QShape())
			*c.arg(name) = x.WithStrides(p.QLen*row, p.Dim, row)
		}
	}
	c := forwardCall(p)
	packed(c, "Q", "K", "V")
	requireTaken(t, c)
	packed(c, "Q", "K", "O") // the output between two inputs
	requireTaken(t, c)
	c.calls = 0
	*c.arg("O") = *c.arg("K")
	requireRefused(t, c, "O")

	c = backwardCall(p)
	packed(c, "Q", "K", "V")
	packed(c, "DQ", "DK", "DV")
	requireTaken(t, c)
	c.calls = 0
	*c.arg("DV") = *c.arg("DK")
	requireRefused(t, c, "DK")
}

// A repeated dimension can reach as far as a dense view would and still have
// gaps, with room for an output.
func TestCheckTakesOutputInTheGapOfAnInput(t *testing.T) {
	p := flashkit.Problem{Batch: 2, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 1, Dim: 2, VDim: 1}
	c := forwardCall(p)
	memory := make([]float32, 8)
	*c.arg("Q") = view(flashkit.Float32, memory, nil, p.QShape()).WithStrides(0, 0, 6) // 0 1 6 7
	*c.arg("O") = view(flashkit.Float32, memory[2:6], nil, p.OShape())
	requireTaken(t, c)

	p = flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 2, VDim: 1}
	c = forwardCall(p)
	*c.arg("K") = view(flashkit.Float32, memory, nil, p.KShape()).WithStrides(0, 0, 3) // 0 1 3 4
	*c.arg("O") = view(flashkit.Float32, memory[2:3], nil, p.OShape())
	requireTaken(t, c)
}

func TestCheckAllocatesNothing(t *testing.T) {
	p := small()
	ctx := t.Context()
	for pass, newCall := range passes {
		c := newCall(p)
		got := allocs.PerRun(100, func() {
			if err := c.run(ctx); err != nil {
				panic(err)
			}
		})
		require.Zero(t, got, pass)
	}
}
