package conformance

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A layout is a way to lay a tensor out in memory.
type layout uint8

const (
	bhsd       layout = iota // dense [batch, heads, rows, elements]
	bshd                     // dense [batch, rows, heads, elements]
	gaps                     // bhsd with unused elements after every row and head
	expanded                 // K and V with stride 0 over batch and heads; the rest as bhsd
	oddStrides               // bhsd with a senseless stride where a dimension has size 1
	numLayouts
)

// guard is the number of elements before and after a tensor that nobody may touch.
const guard = 32

// Bits of NaNs that no computation makes, so that an element that was not
// written and a guard that was are both seen. [0] is for float32, [1] for the
// 16-bit types, whose upper bits all serve as a NaN in f16 and in bf16.
const (
	poison32, untouched32 = 0x7fedcba9, 0x7fabcdef
	poison16, untouched16 = 0x7fed, 0x7fab
)

// A placed tensor lies in memory of its own, between guards.
type placed struct {
	name   string
	tensor flashkit.Tensor
	f32    []float32 // the whole memory, guards included; one of the two is nil
	u16    []uint16
	used   []bool // which elements of the memory the view reaches
}

// place lays out a tensor of the given shape. kv says that it is K or V.
func place(name string, t flashkit.DType, shape [4]int, l layout, kv bool) *placed {
	dim, rows, heads := shape[3], shape[2], shape[1]
	s := [3]int{heads * rows * dim, rows * dim, dim} // strides over batch, heads, rows
	switch {
	case l == bshd:
		s = [3]int{heads * rows * dim, dim, heads * dim}
	case l == gaps:
		s[2] = dim + 3
		s[1] = rows*s[2] + 5
		s[0] = heads * s[1]
	case l == expanded && kv:
		s[0], s[1] = 0, 0
	}
	n := 0
	if size(shape) > 0 {
		n = (shape[0]-1)*s[0] + (heads-1)*s[1] + (rows-1)*s[2] + dim
	}
	if l == oddStrides {
		for d := range s {
			if shape[d] == 1 {
				s[d] = -7777777
			}
		}
	}
	x := &placed{name: name, used: make([]bool, n+2*guard)}
	switch t {
	case flashkit.Float32:
		x.f32 = make([]float32, n+2*guard)
		x.tensor = flashkit.F32(x.f32[guard:guard+n:guard+n], shape[0], heads, rows, dim)
	case flashkit.Float16:
		x.u16 = make([]uint16, n+2*guard)
		x.tensor = flashkit.F16(x.u16[guard:guard+n:guard+n], shape[0], heads, rows, dim)
	case flashkit.BFloat16:
		x.u16 = make([]uint16, n+2*guard)
		x.tensor = flashkit.BF16(x.u16[guard:guard+n:guard+n], shape[0], heads, rows, dim)
	}
	x.tensor = x.tensor.WithStrides(s[0], s[1], s[2])
	x.each(func(at, _ int) { x.used[at] = true })
	x.poison()
	return x
}

// each calls f with the place in memory and the dense index of every element.
func (x *placed) each(f func(at, i int)) {
	shape, i := x.tensor.Shape(), 0
	for b := range shape[0] {
		for h := range shape[1] {
			for r := range shape[2] {
				at := guard + x.tensor.Offset(b, h, r)
				for c := range shape[3] {
					f(at+c, i)
					i++
				}
			}
		}
	}
}

// poison fills the elements with one NaN and everything else with another.
func (x *placed) poison() {
	for at, used := range x.used {
		switch {
		case x.f32 != nil && used:
			x.f32[at] = math.Float32frombits(poison32)
		case x.f32 != nil:
			x.f32[at] = math.Float32frombits(untouched32)
		case used:
			x.u16[at] = poison16
		default:
			x.u16[at] = untouched16
		}
	}
}

// set writes dense values, rounded to the tensor's type.
func (x *placed) set(dense []float32) {
	x.each(func(at, i int) {
		switch x.tensor.DType() {
		case flashkit.Float32:
			x.f32[at] = dense[i]
		case flashkit.Float16:
			x.u16[at] = half.ToF16(dense[i])
		case flashkit.BFloat16:
			x.u16[at] = half.ToBF16(dense[i])
		}
	})
}

// get returns the dense values.
func (x *placed) get() []float64 {
	dense := make([]float64, size(x.tensor.Shape()))
	x.each(func(at, i int) {
		switch x.tensor.DType() {
		case flashkit.Float32:
			dense[i] = float64(x.f32[at])
		case flashkit.Float16:
			dense[i] = float64(half.FromF16(x.u16[at]))
		case flashkit.BFloat16:
			dense[i] = float64(half.FromBF16(x.u16[at]))
		}
	})
	return dense
}

// bits returns a copy of the whole memory, guards and gaps included.
func (x *placed) bits() []uint32 {
	b := make([]uint32, len(x.used))
	for at := range b {
		if x.f32 != nil {
			b[at] = math.Float32bits(x.f32[at])
		} else {
			b[at] = uint32(x.u16[at])
		}
	}
	return b
}

// checkGuards returns an error if anything outside the view was written, or
// anything inside it was not.
func (x *placed) checkGuards() error {
	poison, untouched := uint32(poison32), uint32(untouched32)
	if x.f32 == nil {
		poison, untouched = poison16, untouched16
	}
	for at, b := range x.bits() {
		if !x.used[at] && b != untouched {
			return fmt.Errorf("%s: memory outside the tensor was written, %d elements from its start", x.name, at-guard)
		}
		if x.used[at] && b == poison {
			return fmt.Errorf("%s: an element was not written, %d elements from its start", x.name, at-guard)
		}
	}
	return nil
}
