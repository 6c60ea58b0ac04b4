package main

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A layout is the order of the dimensions in memory and in files.
type layout string

const (
	bhsd layout = "bhsd" // [batch, heads, rows, elements]
	bshd layout = "bshd" // [batch, rows, heads, elements]
)

func parseLayout(s string) (layout, error) {
	if l := layout(s); l == bhsd || l == bshd {
		return l, nil
	}
	return "", fmt.Errorf("--layout %q: must be bhsd or bshd", s)
}

// swap turns a shape from one order to the other; it is its own inverse.
func (l layout) swap(shape [4]int) [4]int {
	if l == bshd {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return shape
}

// An array is dense data in one of the three types. Its shape is logical,
// [batch, heads, rows, elements], whatever the layout of the data.
type array struct {
	dtype flashkit.DType
	shape [4]int
	f32   []float32
	u16   []uint16
}

func newArray(t flashkit.DType, shape [4]int) *array {
	a := &array{dtype: t, shape: shape}
	n := shape[0] * shape[1] * shape[2] * shape[3]
	if t == flashkit.Float32 {
		a.f32 = make([]float32, n)
	} else {
		a.u16 = make([]uint16, n)
	}
	return a
}

func (a *array) len() int { return len(a.f32) + len(a.u16) }

// tensor returns a view of the array for a kernel.
func (a *array) tensor(l layout) flashkit.Tensor {
	if a == nil {
		return flashkit.Tensor{}
	}
	var t flashkit.Tensor
	switch b, h, s, d := a.shape[0], a.shape[1], a.shape[2], a.shape[3]; a.dtype {
	case flashkit.Float32:
		t = flashkit.F32(a.f32, b, h, s, d)
	case flashkit.Float16:
		t = flashkit.F16(a.u16, b, h, s, d)
	case flashkit.BFloat16:
		t = flashkit.BF16(a.u16, b, h, s, d)
	}
	if l == bshd {
		return t.AsBSHD()
	}
	return t
}

func (a *array) at(i int) float32 {
	switch a.dtype {
	case flashkit.Float16:
		return half.FromF16(a.u16[i])
	case flashkit.BFloat16:
		return half.FromBF16(a.u16[i])
	}
	return a.f32[i]
}

func (a *array) set(i int, x float32) {
	switch a.dtype {
	case flashkit.Float16:
		a.u16[i] = half.ToF16(x)
	case flashkit.BFloat16:
		a.u16[i] = half.ToBF16(x)
	default:
		a.f32[i] = x
	}
}

// convert returns the array in another type, rounded.
func (a *array) convert(t flashkit.DType) *array {
	if a == nil || a.dtype == t {
		return a
	}
	b := newArray(t, a.shape)
	for i := range a.len() {
		b.set(i, a.at(i))
	}
	return b
}

// dense returns the values in the order [batch, heads, rows, elements].
func (a *array) dense(l layout) []float64 {
	if a.len() == 0 {
		return nil // any number of heads without rows
	}
	x := make([]float64, 0, a.len())
	t := a.tensor(l)
	for b := range a.shape[0] {
		for h := range a.shape[1] {
			for r := range a.shape[2] {
				from := t.Offset(b, h, r)
				for c := range a.shape[3] {
					x = append(x, float64(a.at(from+c)))
				}
			}
		}
	}
	return x
}

// file returns the array as a tensor of a safetensors file.
func (a *array) file(name string, dims []int) safetensors.Tensor {
	if a.dtype == flashkit.Float32 {
		return safetensors.FromFloat32s(name, dims, a.f32)
	}
	return safetensors.FromUint16s(name, fileTypes[a.dtype], dims, a.u16)
}

// fileTypes are the safetensors names of the types.
var fileTypes = map[flashkit.DType]string{flashkit.Float32: "F32", flashkit.Float16: "F16", flashkit.BFloat16: "BF16"}
