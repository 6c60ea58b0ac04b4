package input

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A Layout is the order of dimensions of query and key tensors, in memory and in files. Other
// tensors have a fixed order.
type Layout string

const (
	BHSD Layout = "bhsd" // [batch, heads, rows, elements]
	BSHD Layout = "bshd" // [batch, rows, heads, elements]
)

// ParseLayout parses the value of --layout.
func ParseLayout(s string) (Layout, error) {
	if l := Layout(s); l == BHSD || l == BSHD {
		return l, nil
	}
	return "", fmt.Errorf("--layout %q: must be bhsd or bshd", s)
}

// swap converts a shape between the layout and BHSD. Two swaps give back the original shape.
func (l Layout) swap(shape [4]int) [4]int {
	if l == BSHD {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return shape
}

const (
	Queries side = iota // query rows
	Keys                // key rows
	pairs               // query rows, with an element per key
	Neither             // no rows: a number per head
)

// NewTensor returns a tensor of zeros. s is in BHSD order for any layout.
func NewTensor(t flashkit.DType, s [4]int, l Layout) flashkit.Tensor {
	x := flashkit.Zeros(t, s[0], s[1], s[2], s[3])
	if l == BSHD {
		return x.AsBSHD()
	}
	return x
}

// IsEmpty reports whether a shape has no elements, because one dimension is 0. The other dimensions
// may then be of any size.
func IsEmpty(shape [4]int) bool {
	return shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0
}

// Value returns element i of a tensor's memory as float32: 0 or 1 for Bool.
func Value(t *flashkit.Tensor, i int) float32 {
	switch t.DType() {
	case flashkit.Float32:
		return t.Float32s()[i]
	case flashkit.Int8:
		return float32(t.Int8s()[i])
	case flashkit.Int32:
		return float32(t.Int32s()[i])
	case flashkit.Bool:
		if t.Bools()[i] {
			return 1
		}
		return 0
	}
	if t.DType() == flashkit.Float16 {
		return half.FromF16(t.Uint16s()[i])
	}
	return half.FromBF16(t.Uint16s()[i])
}

// SetValue sets element i of a tensor's memory to x, rounded to the tensor's type.
func SetValue(t *flashkit.Tensor, i int, x float32) {
	switch t.DType() {
	case flashkit.Float32:
		t.Float32s()[i] = x
	case flashkit.Float16:
		t.Uint16s()[i] = half.ToF16(x)
	case flashkit.BFloat16:
		t.Uint16s()[i] = half.ToBF16(x)
	case flashkit.Bool:
		t.Bools()[i] = x != 0
	case flashkit.Int8:
		t.Int8s()[i] = int8(x)
	case flashkit.Int32:
		t.Int32s()[i] = int32(x)
	}
}

// Converted returns the tensor rounded to another type.
func Converted(t flashkit.Tensor, to flashkit.DType) flashkit.Tensor {
	if t.IsZero() || t.DType() == to {
		return t
	}
	s := t.Strides()
	x := NewTensor(to, t.Shape(), BHSD).WithStrides(s[0], s[1], s[2])
	for i := range t.Len() {
		SetValue(&x, i, Value(&t, i))
	}
	return x
}

func copied(t flashkit.Tensor) flashkit.Tensor {
	s := t.Strides()
	x := NewTensor(t.DType(), t.Shape(), BHSD).WithStrides(s[0], s[1], s[2])
	restore(&x, &t)
	return x
}

// restore overwrites to's elements with from's elements. Both tensors must have the same type and
// strides.
func restore(to, from *flashkit.Tensor) {
	copy(to.Float32s(), from.Float32s())
	copy(to.Uint16s(), from.Uint16s())
}

// elements returns the elements of a tensor in row-major order.
func elements(t *flashkit.Tensor) []float64 {
	shape := t.Shape()
	if IsEmpty(shape) {
		return nil // the other dimensions of an empty shape may be huge
	}
	x := make([]float64, 0, shape[0]*shape[1]*shape[2]*shape[3])
	for b := range shape[0] {
		for h := range shape[1] {
			for r := range shape[2] {
				for c, at := 0, t.Offset(b, h, r); c < shape[3]; c++ {
					x = append(x, float64(Value(t, at+c)))
				}
			}
		}
	}
	return x
}

func bytesOf(t flashkit.DType, shape [4]int) float64 {
	bytes := float64(t.Size())
	for _, d := range shape {
		bytes *= float64(d)
	}
	return bytes
}
