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
	for pass, make := range passes {
		for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16} {
			p := small()
			p.DType = dtype
			for i, a := range make(p).args {
				t.Run(fmt.Sprintf("%s/%s/%s", pass, dtype, a.name), func(t *testing.T) {
					c := make(p)
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
		requireTaken(t, c)
		c.calls = 0
		*a.t = flashkit.Tensor{}
		if a.optional {
			requireTaken(t, c)
			return
		}
		requireRefused(t, c, a.name)
		// With no batch the tensors are empty, but must still be given.
		c.p.Batch = 0
		requireProblemError(t, c.run(t.Context()), c.firstOther(a.name))
	})
}

// firstOther returns the field at fault once every shape has become wrong: a
// missing tensor is only named when no earlier one has a wrong shape.
func (c *call) firstOther(missing string) string {
	if c.args[0].name == missing {
		return missing
	}
	return c.args[0].name + ".shape"
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
		// One more element between two rows, heads or batches, and between all.
		for _, far := range []int{1, 1000, math.MaxInt / 2, math.MaxInt} {
			for d := range 3 {
				stride := s
				stride[d] = max(far, stride[d]+far)
				if far == math.MaxInt {
					stride[d] = far
				}
				*a.t = right.WithStrides(stride[0], stride[1], stride[2])
				requireRefused(t, c, a.name+".len")
			}
			*a.t = right.WithStrides(far, far, far)
			requireProblemError(t, c.run(t.Context()), c.tooFar(a, far))
		}
		*a.t = right
		requireTaken(t, c)
	})
}

// tooFar returns the field at fault when all three strides of a are far. The
// strides 1 are short enough for the memory, but let an output overlap.
func (c *call) tooFar(a argument, far int) string {
	if far > 1 {
		return a.name + ".len"
	}
	if !a.output {
		return "" // see below
	}
	return a.name + ".strides[0]"
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
	for pass, make := range passes {
		for i, out := range make(small()).args {
			for j, other := range make(small()).args {
				if i == j || !out.output {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", pass, out.name, other.name), func(t *testing.T) {
					c := make(small())
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
	*other.t = view(flashkit.Float32, memory[:other.t.Len()-out.t.Len()], nil, other.t.Shape())
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
