package input

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A Layout is the order of the dimensions of tensors of rows and of keys, in memory and
// in files. That of other tensors is always the same.
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

// swap turns a shape from one order to the other; it is its own inverse.
func (l Layout) swap(shape [4]int) [4]int {
	if l == BSHD {
		shape[1], shape[2] = shape[2], shape[1]
	}
	return shape
}

const (
	Queries side = iota // rows of one query each
	Keys                // rows of one key each
	pairs               // query rows, of one element for each key
	Neither             // nothing: there is a number for each head
)

// NewTensor returns a tensor of zeros. Its shape is logical, whatever the layout.
func NewTensor(t flashkit.DType, s [4]int, l Layout) flashkit.Tensor {
	x := flashkit.Zeros(t, s[0], s[1], s[2], s[3])
	if l == BSHD {
		return x.AsBSHD()
	}
	return x
}

// IsEmpty reports whether a shape has no elements: its other dimensions may then be of
// any length.
func IsEmpty(shape [4]int) bool {
	return shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0
}

// Value returns an element of a tensor's memory; those of a Bool are 0 and 1.
func Value(t *flashkit.Tensor, i int) float32 {
	switch t.DType() {
	case flashkit.Float32:
		return t.Float32s()[i]
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

// SetValue sets an element of a tensor's memory, rounded.
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
	}
}

// Converted returns the tensor in another type, rounded.
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

// copied returns a tensor of its own memory with the same elements.
func copied(t flashkit.Tensor) flashkit.Tensor {
	s := t.Strides()
	x := NewTensor(t.DType(), t.Shape(), BHSD).WithStrides(s[0], s[1], s[2])
	restore(&x, &t)
	return x
}

// restore copies the memory of one tensor into that of another of the same type.
func restore(to, from *flashkit.Tensor) {
	copy(to.Float32s(), from.Float32s())
	copy(to.Uint16s(), from.Uint16s())
}

// elements returns the elements in the order of the tensor's shape.
func elements(t *flashkit.Tensor) []float64 {
	shape := t.Shape()
	if IsEmpty(shape) {
		return nil // any number of heads without rows
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

// bytesOf returns what tensors of a shape take.
func bytesOf(t flashkit.DType, shape [4]int) float64 {
	bytes := float64(t.Size())
	for _, d := range shape {
		bytes *= float64(d)
	}
	return bytes
}
