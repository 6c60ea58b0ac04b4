package main

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A layout is the order of the dimensions of tensors of rows and of keys, in memory and
// in files. That of other tensors is always the same.
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

const (
	queries side = iota // rows of one query each
	keys                // rows of one key each
	pairs               // query rows, of one element for each key
	none                // nothing: there is a number for each head
)

// newTensor returns a tensor of zeros. Its shape is logical, whatever the layout.
func newTensor(t flashkit.DType, s [4]int, l layout) flashkit.Tensor {
	x := flashkit.Zeros(t, s[0], s[1], s[2], s[3])
	if l == bshd {
		return x.AsBSHD()
	}
	return x
}

// empty reports whether a shape has no elements: its other dimensions may then be of
// any length.
func empty(shape [4]int) bool {
	return shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0
}

// value returns an element of a tensor's memory; those of a Bool are 0 and 1.
func value(t *flashkit.Tensor, i int) float32 {
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

// setValue sets an element of a tensor's memory, rounded.
func setValue(t *flashkit.Tensor, i int, x float32) {
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

// converted returns the tensor in another type, rounded.
func converted(t flashkit.Tensor, to flashkit.DType) flashkit.Tensor {
	if t.IsZero() || t.DType() == to {
		return t
	}
	s := t.Strides()
	x := newTensor(to, t.Shape(), bhsd).WithStrides(s[0], s[1], s[2])
	for i := range t.Len() {
		setValue(&x, i, value(&t, i))
	}
	return x
}

// copied returns a tensor of its own memory with the same elements.
func copied(t flashkit.Tensor) flashkit.Tensor {
	s := t.Strides()
	x := newTensor(t.DType(), t.Shape(), bhsd).WithStrides(s[0], s[1], s[2])
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
	if empty(shape) {
		return nil // any number of heads without rows
	}
	x := make([]float64, 0, shape[0]*shape[1]*shape[2]*shape[3])
	for b := range shape[0] {
		for h := range shape[1] {
			for r := range shape[2] {
				for c, at := 0, t.Offset(b, h, r); c < shape[3]; c++ {
					x = append(x, float64(value(t, at+c)))
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
