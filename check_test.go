package flashkit_test

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

// eachArgument calls f with a fresh call for every argument of both passes in
// a 32-bit and a 16-bit type.
func eachArgument(t *testing.T, f func(t *testing.T, c *call, a argument)) {
	for pass, newCall := range passes {
		for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16} {
			p := small()
			p.DType = dtype
			for i, a := range newCall(p).args {
				t.Run(fmt.Sprintf("%s/%s/%s", pass, dtype, a.name), func(t *testing.T) {
					c := newCall(p)
					f(t, c, c.args[i])
				})
			}
		}
	}
}

// requireRefused checks that the call names the field and stays outside.
func requireRefused(t *testing.T, c *call, field string) *flashkit.ProblemError {
	t.Helper()
	wrong := requireProblemError(t, c.run(t.Context()), field)
	require.Zero(t, c.calls, "the kernel was entered")
	return wrong
}

// requireTaken checks that the call enters the kernel once.
func requireTaken(t *testing.T, c *call) {
	t.Helper()
	c.calls = 0
	require.NoError(t, c.run(t.Context()))
	require.Equal(t, 1, c.calls)
}

func TestCheckMissing(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		*a.t = flashkit.Tensor{}
		if a.optional {
			requireTaken(t, c)
			return
		}
		requireRefused(t, c, a.name)
	})
}

func TestCheckDType(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16} {
			if want := a.t.DType(); dtype != want {
				*a.t = tensor(dtype, a.t.Shape())
				requireRefused(t, c, a.name+".dtype")
				*a.t = tensor(want, a.t.Shape())
			}
		}
		requireTaken(t, c)
	})
}

func TestCheckShape(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		right := *a.t
		for d := range 4 {
			for _, wrong := range []int{right.Shape()[d] + 1, right.Shape()[d] - 1, 0, -1, math.MinInt} {
				shape := right.Shape()
				shape[d] = wrong
				*a.t = view(right.DType(), right.Float32s(), right.Uint16s(), shape)
				requireRefused(t, c, a.name+".shape")
			}
		}
		*a.t = right
		requireTaken(t, c)
	})
}

func TestCheckLength(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		right := *a.t
		shape, s := right.Shape(), right.Strides()
		short := func(x flashkit.Tensor, n int) flashkit.Tensor {
			f, u := x.Float32s(), x.Uint16s()
			return view(x.DType(), f[:max(0, len(f)-n)], u[:max(0, len(u)-n)], shape)
		}
		*a.t = short(right, 1)
		requireRefused(t, c, a.name+".len")
		*a.t = short(right, right.Len())
		requireRefused(t, c, a.name+".len")
		for _, more := range []int{1, 1000, math.MaxInt/2 - s[0], math.MaxInt - s[0]} {
			for d := range 3 {
				far := s
				far[d] += more
				*a.t = right.WithStrides(far[0], far[1], far[2])
				requireRefused(t, c, a.name+".len")
			}
			*a.t = right.WithStrides(s[0]+more, s[1]+more, s[2]+more)
			requireRefused(t, c, a.name+".len")
		}
		*a.t = right
		requireTaken(t, c)
	})
}

// With one element, or one repeated, no stride shows that the memory is empty.
func TestCheckLengthOfOneElement(t *testing.T) {
	for _, newCall := range passes {
		one := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1}
		for i, a := range newCall(one).args {
			c := newCall(one)
			*c.args[i].t = view(flashkit.Float32, nil, nil, [4]int{1, 1, 1, 1})
			requireRefused(t, c, a.name+".len")
		}
		one.Batch, one.QLen = 2, 3
		c := newCall(one)
		*c.arg("Q") = view(flashkit.Float32, nil, nil, one.QShape()).WithStrides(0, 0, 0)
		requireRefused(t, c, "Q.len")
	}
}

func TestCheckNegativeStride(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		right := *a.t
		for d := range 3 {
			for _, stride := range []int{-1, -right.Strides()[d], math.MinInt} {
				s := right.Strides()
				s[d] = stride
				*a.t = right.WithStrides(s[0], s[1], s[2])
				requireRefused(t, c, fmt.Sprintf("%s.strides[%d]", a.name, d))
			}
		}
	})
}

func TestCheckOverlappingOutput(t *testing.T) {
	eachArgument(t, func(t *testing.T, c *call, a argument) {
		right := *a.t
		for d := range 3 {
			for _, stride := range []int{0, right.Strides()[d] - 1} {
				s := right.Strides()
				s[d] = stride
				*a.t = right.WithStrides(s[0], s[1], s[2])
				if a.output {
					requireRefused(t, c, fmt.Sprintf("%s.strides[%d]", a.name, d))
				} else {
					requireTaken(t, c)
				}
				c.calls = 0
			}
		}
	})
}

func TestCheckSharedMemory(t *testing.T) {
	for pass, newCall := range passes {
		for i, out := range newCall(small()).args {
			for j, other := range newCall(small()).args {
				if i == j || !out.output {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", pass, out.name, other.name), func(t *testing.T) {
					c := newCall(small())
					for _, from := range []int{0, 1, c.args[j].t.Len() - 1} {
						c.requireShared(t, i, j, from)
					}
				})
			}
		}
	}
}

// requireShared places argument i over the memory of argument j, beginning at
// its element from. The first output of the two is named, then the other.
func (c *call) requireShared(t *testing.T, i, j, from int) {
	t.Helper()
	out, other := c.args[i], c.args[j]
	memory := make([]float32, other.t.Len()+out.t.Len())
	*other.t = view(flashkit.Float32, memory, nil, other.t.Shape())
	*out.t = view(flashkit.Float32, memory[from:], nil, out.t.Shape())
	first, second := out, other
	if other.output && j < i {
		first, second = other, out
	}
	wrong := requireRefused(t, c, first.name)
	require.Contains(t, wrong.Reason, second.name)
	// Side by side they are fine.
	*other.t = view(flashkit.Float32, memory[:elements(other.t.Shape())], nil, other.t.Shape())
	*out.t = view(flashkit.Float32, memory[elements(other.t.Shape()):], nil, out.t.Shape())
	requireTaken(t, c)
	c.calls = 0
}

func TestCheckSharedMemoryOfTwoTypes(t *testing.T) {
	p := small()
	p.DType = flashkit.BFloat16
	c := forwardCall(p)
	lse := c.arg("LSE").Float32s()
	o := make([]uint16, c.arg("O").Len())
	*c.arg("O") = view(flashkit.BFloat16, nil, o, p.OShape())
	*c.arg("LSE") = view(flashkit.Float32, unsafe.Slice((*float32)(unsafe.Pointer(&o[8])), len(lse)), nil, p.LSEShape())
	requireRefused(t, c, "O")
}

func BenchmarkSet(b *testing.B) {
	p, err := flashkit.ParseProblem("b1-h32-g8-n1-m4096-d128-bf16")
	require.NoError(b, err)
	for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		args, c := flashkit.NewArgs(p, pass), new(flashkit.Call)
		b.Run(pass.String(), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, c.Set(p, pass, args))
			}
		})
	}
}
