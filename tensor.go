package flashkit

import (
	"math"
	"unsafe"
)

// An Owner is the owner of a tensor's device memory, such as a buffer of package cuda.
type Owner interface {
	// Device returns the device's name, for messages.
	Device() string
}

// A Tensor is a strided view of the caller's memory, on the host or on a device. It has an
// element type, an address, a length in elements, and four dimensions [batch, heads, rows, row
// elements] with strides in elements. The elements of a row are contiguous. The caller chooses
// the other strides. BHSD and BSHD layouts and rows with gaps therefore need no copy, and inputs
// may broadcast a dimension with stride 0. The zero Tensor stands for an absent optional
// argument.
//
// A Tensor is a value. Functions that make a Tensor check nothing; a call checks it against the
// Problem.
type Tensor struct {
	dtype   DType
	mem     unsafe.Pointer // the first element, in host memory
	owner   Owner          // owner of the device memory, nil on the host
	address uintptr        // address of the first element in device memory
	len     int            // length of the memory in elements
	shape   [4]int
	strides [4]int
}

// F32 returns a dense row-major view of x as float32 [b, heads, rows, dim]. If x is too short
// for the shape, the call that uses the view returns an error.
func F32[T ~float32](x []T, b, heads, rows, dim int) Tensor {
	return dense(Float32, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, dim)
}

// F16 returns a dense row-major view of x as IEEE binary16 [b, heads, rows, dim]. The elements
// of x are the bits of the numbers.
func F16[T ~uint16](x []T, b, heads, rows, dim int) Tensor {
	return dense(Float16, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, dim)
}

// BF16 returns a dense row-major view of x as bfloat16 [b, heads, rows, dim]. The elements of x
// are the bits of the numbers.
func BF16[T ~uint16](x []T, b, heads, rows, dim int) Tensor {
	return dense(BFloat16, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, dim)
}

// Bools returns a dense row-major view of x as a mask [b, heads, rows, keys]. True keeps the
// pair of a row and a key. A dimension of length 1 broadcasts.
func Bools[T ~bool](x []T, b, heads, rows, keys int) Tensor {
	return dense(Bool, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, keys)
}

// Int32s returns a dense row-major view of x as ranges of keys [b, heads, rows, 2R]. Package
// flashkit has functions that make common ranges, such as DocumentRanges.
func Int32s[T ~int32](x []T, b, heads, rows, ends int) Tensor {
	return dense(Int32, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, ends)
}

// Int8s returns a dense row-major view of x as quantized keys or values [b, heads, rows, dim].
// QuantizeRows makes such elements and their scales.
func Int8s[T ~int8](x []T, b, heads, rows, dim int) Tensor {
	return dense(Int8, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, dim)
}

// Zeros returns a dense row-major tensor [b, heads, rows, dim] in new host memory, all zeros,
// or all false for Bool. If a dimension is negative, or the size exceeds 1<<47 bytes, the result
// has no memory, and calls refuse it.
func Zeros(t DType, b, heads, rows, dim int) Tensor {
	n := b * heads * rows * dim
	if min(b, heads, rows, dim) < 0 || overflows(min(math.MaxInt, 1<<47), t.Size(), b, heads, rows, dim) {
		n = 0
	}
	switch t {
	case Float16:
		return F16(make([]uint16, n), b, heads, rows, dim)
	case BFloat16:
		return BF16(make([]uint16, n), b, heads, rows, dim)
	case Bool:
		return Bools(make([]bool, n), b, heads, rows, dim)
	case Int32:
		return Int32s(make([]int32, n), b, heads, rows, dim)
	case Int8:
		return Int8s(make([]int8, n), b, heads, rows, dim)
	}
	return F32(make([]float32, n), b, heads, rows, dim)
}

// OnDevice returns a dense row-major view [b, heads, rows, dim] of device memory. The memory
// begins at address and has the given number of elements. If owner is nil, OnDevice returns the
// zero Tensor. Backends call OnDevice; programs use the constructors of the backend.
func OnDevice(owner Owner, t DType, address uintptr, elements, b, heads, rows, dim int) Tensor {
	if owner == nil {
		return Tensor{}
	}
	x := dense(t, nil, elements, b, heads, rows, dim)
	x.owner, x.address = owner, address
	return x
}

func dense(dtype DType, mem unsafe.Pointer, n, b, heads, rows, dim int) Tensor {
	t := Tensor{dtype: dtype, mem: mem, len: n, shape: [4]int{b, heads, rows, dim}}
	return t.WithStrides(heads*rows*dim, rows*dim, dim)
}

// WithStrides returns the view with the given strides of batches, heads and rows, in elements.
// Inputs may use 0 to broadcast a dimension.
func (t Tensor) WithStrides(batch, head, row int) Tensor {
	t.strides = [4]int{batch, head, row, 1}
	return t
}

// AsBSHD returns a view of the same shape for memory in the order [batch, rows, heads, row
// elements].
func (t Tensor) AsBSHD() Tensor {
	heads, rows, dim := t.shape[1], t.shape[2], t.shape[3]
	return t.WithStrides(rows*heads*dim, dim, heads*dim)
}

// DType returns the element type.
func (t Tensor) DType() DType { return t.dtype }

// Shape returns the dimensions [batch, heads, rows, row elements].
func (t Tensor) Shape() [4]int { return t.shape }

// Strides returns the strides of the dimensions in elements; the last is 1.
func (t Tensor) Strides() [4]int { return t.strides }

// Owner returns the owner of the tensor's device memory, nil on the host.
func (t Tensor) Owner() Owner { return t.owner }

// Float32s returns the memory behind a Float32 host tensor, a slice of Len elements. For other
// tensors the result is nil.
func (t Tensor) Float32s() []float32 {
	if t.dtype != Float32 || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*float32)(t.mem), t.len)
}

// Uint16s returns the memory behind a Float16 or BFloat16 host tensor as bits, a slice of Len
// elements. For other tensors the result is nil.
func (t Tensor) Uint16s() []uint16 {
	if t.dtype != Float16 && t.dtype != BFloat16 || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*uint16)(t.mem), t.len)
}

// Bools returns the memory behind a Bool host tensor, a slice of Len elements. For other tensors
// the result is nil.
func (t Tensor) Bools() []bool {
	if t.dtype != Bool || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*bool)(t.mem), t.len)
}

// Int32s returns the memory behind an Int32 host tensor, a slice of Len elements. For other
// tensors the result is nil.
func (t Tensor) Int32s() []int32 {
	if t.dtype != Int32 || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*int32)(t.mem), t.len)
}

// Int8s returns the memory behind an Int8 host tensor, a slice of Len elements. For other tensors
// the result is nil.
func (t Tensor) Int8s() []int8 {
	if t.dtype != Int8 || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*int8)(t.mem), t.len)
}

// Len returns the length in elements of the memory behind the view.
func (t Tensor) Len() int { return t.len }

// Address returns the address of the first element, on the host or on the device.
func (t Tensor) Address() uintptr {
	if t.owner != nil {
		return t.address
	}
	return uintptr(t.mem)
}

// IsZero reports whether t is the zero Tensor.
func (t Tensor) IsZero() bool { return t.shape == [4]int{} && t.len == 0 }

// Offset returns the offset of row r of head h of batch b, in elements from the start of the
// memory.
func (t Tensor) Offset(b, h, r int) int {
	return b*t.strides[0] + h*t.strides[1] + r*t.strides[2]
}

// Repeated is Offset for a tensor that broadcasts, such as a bias or mask. In a dimension of
// length 1, any index counts as 0.
func (t Tensor) Repeated(b, h, r int) int {
	at := 0
	for d, i := range [...]int{b, h, r} {
		if t.shape[d] != 1 {
			at += i * t.strides[d]
		}
	}
	return at
}

// isLoose reports whether a row of the view may begin at an address that is not a multiple of
// 16 bytes.
func (t *Tensor) isLoose() bool {
	bits := t.Address()
	for d := range 3 {
		if t.shape[d] > 1 {
			bits |= uintptr(t.strides[d] * t.dtype.Size())
		}
	}
	return bits%16 != 0
}

// span returns the address range [from, to) from the start of the view's first element to the
// end of its last element. The view must not be empty and must fit its memory.
func (t *Tensor) span() (from, to uintptr) {
	from = uintptr(t.mem)
	if t.owner != nil {
		from = t.address
	}
	last := t.shape[3]
	for d := range 3 {
		last += (t.shape[d] - 1) * t.strides[d]
	}
	return from, from + uintptr(last*t.dtype.Size())
}

func (t *Tensor) empty() bool {
	return t.shape[0] == 0 || t.shape[1] == 0 || t.shape[2] == 0 || t.shape[3] == 0
}

// isDense reports whether the view certainly contains every element between its first and its
// last element. This is certain if no stride exceeds the span of all dimensions with smaller
// strides.
func (t *Tensor) isDense() bool {
	reach := t.shape[3]
	for _, d := range t.byStride() {
		if t.shape[d] == 1 {
			continue
		}
		if t.strides[d] > reach {
			return false
		}
		reach += (t.shape[d] - 1) * t.strides[d]
	}
	return true
}

// byStride returns the dimensions 0, 1 and 2 (batch, head, row) in the order of increasing
// stride.
func (t *Tensor) byStride() [3]int {
	order := [3]int{0, 1, 2}
	for _, pair := range [3][2]int{{0, 1}, {1, 2}, {0, 1}} {
		if a, b := &order[pair[0]], &order[pair[1]]; t.strides[*b] < t.strides[*a] {
			*a, *b = *b, *a
		}
	}
	return order
}
