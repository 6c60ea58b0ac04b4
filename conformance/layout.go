package conformance

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A layout is an arrangement of tensors in memory.
type layout uint8

const (
	bhsd       layout = iota // dense [batch, heads, rows, elements]
	bshd                     // dense [batch, rows, heads, elements]
	gaps                     // as bhsd, with unused elements after each row and head
	expanded                 // K and V with stride 0 for batch and heads; other tensors as bhsd
	oddStrides               // as bhsd, with a meaningless stride for each dimension of size 1, and for all dimensions of an empty tensor
	numLayouts

	// Layouts of ragged sequences. newSides turns any problem into a ragged problem for these layouts.
	padded   // tensors longer than any sequence
	packed   // packed queries and keys
	packedQ  // packed queries
	packedKV // packed keys
	paged    // paged keys
	endLayouts
)

var layoutNames = map[layout]string{padded: "padded", packed: "packed", packedQ: "packed_q", packedKV: "packed_kv", paged: "paged"}

// guard is the number of elements before and after a tensor that a kernel must not touch.
const guard = 32

// Bits of NaNs that no computation produces. Before a call, elements of outputs are set to poison32
// or poison16. The memory around the outputs is set to untouched32 or untouched16. The 16-bit
// patterns are NaN in f16 and in bf16.
const (
	poison32, untouched32 = 0x7fedcba9, 0x7fabcdef
	poison16, untouched16 = 0x7fed, 0x7fab
)

// A placed tensor is one tensor of a call in its own memory, with a guard before and after it.
type placed struct {
	name   string
	tensor flashkit.Tensor
	of     func(*flashkit.Args) *flashkit.Tensor // the tensor's field of Args
	f32    []float32                             // the whole memory with guards; exactly one of f32, u16, bools, i32 and i8 is not nil
	u16    []uint16
	bools  []bool
	i32    []int32
	i8     []int8
	dense  [4]int
	index  []int     // index in this memory of each element of the dense array, -1 for an element outside its sequence
	rest   []int     // indices in this memory of the tensor's elements outside all sequences
	filler float64   // expected value of an output's elements in rest
	used   []bool    // true for each index in this memory that index or rest contains
	start  []float32 // initial values of an output that is also read
}

// place returns a tensor of the given shape in layout l, with a guard before and after it. kv is
// true for K and V.
func place(name string, t flashkit.DType, shape [4]int, l layout, kv bool) *placed {
	dim, rows, heads := shape[3], shape[2], shape[1]
	s := [3]int{heads * rows * dim, rows * dim, dim} // of batch, heads, rows
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
			if shape[d] == 1 || n == 0 {
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
	case flashkit.Bool:
		x.bools = make([]bool, n+2*guard)
		x.tensor = flashkit.Bools(x.bools[guard:guard+n:guard+n], shape[0], heads, rows, dim)
	case flashkit.Int8:
		x.i8 = make([]int8, n+2*guard)
		x.tensor = flashkit.Int8s(x.i8[guard:guard+n:guard+n], shape[0], heads, rows, dim)
	case flashkit.Int32:
		x.i32 = make([]int32, n+2*guard)
		x.tensor = flashkit.Int32s(x.i32[guard:guard+n:guard+n], shape[0], heads, rows, dim)
	}
	x.tensor = x.tensor.WithStrides(s[0], s[1], s[2])
	return x
}

// fill sets x.index, the memory indices of a dense array's elements. locate returns the batch and
// row of the tensor that hold row r of sequence b. batch is -1 if the sequence has no row r. If
// hasRest is true, fill adds all other elements of the tensor to x.rest.
func (x *placed) fill(dense [4]int, locate func(b, r int) (batch, row int), hasRest bool) {
	x.dense, x.index = dense, make([]int, 0, size(dense))
	for b := range dense[0] {
		for h := range dense[1] {
			for r := range dense[2] {
				batch, row := locate(b, r)
				first := 0
				if batch >= 0 {
					first = guard + x.tensor.Offset(batch, h, row)
				}
				for c := range dense[3] {
					at := -1
					if batch >= 0 {
						at = first + c
						x.used[at] = true
					}
					x.index = append(x.index, at)
				}
			}
		}
	}
	if !hasRest {
		return
	}
	shape := x.tensor.Shape()
	for b := range shape[0] {
		for h := range shape[1] {
			for r := range shape[2] {
				first := guard + x.tensor.Offset(b, h, r)
				for at := first; at < first+shape[3]; at++ {
					if !x.used[at] {
						x.used[at], x.rest = true, append(x.rest, at)
					}
				}
			}
		}
	}
}

// poison fills the tensor's elements with the NaN poison32 or poison16, or with x.start if the
// output is also read. It fills the memory outside the tensor with untouched32 or untouched16.
func (x *placed) poison() {
	for at, used := range x.used {
		switch {
		case x.bools != nil:
			x.bools[at] = used != (at%2 == 0) // a bool has no NaN, so elements and the memory around them get opposite alternating values
		case x.i32 != nil: // an int32 has no NaN, so each element is an end that no range may have
			x.i32[at] = math.MinInt32 + int32(at%2)
		case x.i8 != nil:
			x.i8[at] = math.MinInt8 + int8(at%2)
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
	if x.start != nil {
		x.set(x.start)
	}
}

// set converts dense values to the tensor's type and stores them in the tensor's elements.
func (x *placed) set(dense []float32) {
	for i, at := range x.index {
		if at < 0 {
			continue
		}
		switch x.tensor.DType() {
		case flashkit.Float32:
			x.f32[at] = dense[i]
		case flashkit.Float16:
			x.u16[at] = half.ToF16(dense[i])
		case flashkit.BFloat16:
			x.u16[at] = half.ToBF16(dense[i])
		case flashkit.Bool:
			x.bools[at] = dense[i] != 0
		case flashkit.Int8:
			x.i8[at] = int8(dense[i])
		case flashkit.Int32:
			x.i32[at] = int32(dense[i])
		}
	}
}

// value returns the element at index `at` of the memory.
func (x *placed) value(at int) float64 {
	switch x.tensor.DType() {
	case flashkit.Float16:
		return float64(half.FromF16(x.u16[at]))
	case flashkit.BFloat16:
		return float64(half.FromBF16(x.u16[at]))
	}
	return float64(x.f32[at])
}

// bits returns the bits of the whole memory, with guards and gaps.
func (x *placed) bits() []uint32 {
	b := make([]uint32, len(x.used))
	for at := range b {
		switch {
		case x.bools != nil:
			if x.bools[at] {
				b[at] = 1
			}
		case x.i8 != nil:
			b[at] = uint32(uint8(x.i8[at]))
		case x.i32 != nil:
			b[at] = uint32(x.i32[at])
		case x.f32 != nil:
			b[at] = math.Float32bits(x.f32[at])
		default:
			b[at] = uint32(x.u16[at])
		}
	}
	return b
}

// checkGuards returns an error if a call wrote memory outside the tensor or left an element
// unwritten.
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
