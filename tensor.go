package flashkit

import "unsafe"

// An Owner is what memory of a device belongs to, such as a buffer of package cuda.
type Owner interface {
	// Device names the device, for people.
	Device() string
}

// A Tensor is a strided view of the caller's memory, on the host or on a device: a
// dtype, an address, a number of elements, and four dimensions [batch, heads, rows,
// row elements] with a stride each, counted in elements. The elements of a row are contiguous; the other strides
// are free, so BHSD, BSHD, rows with gaps and, for inputs, dimensions expanded
// with stride 0 need no copy. The zero Tensor means "not wanted" where a field
// allows it.
//
// A Tensor is a value; nothing is checked until it is used with a Problem.
type Tensor struct {
	dtype   DType
	mem     unsafe.Pointer // the first element, in the host's memory
	owner   Owner          // of memory on a device, nil on the host
	address uintptr        // of the first element there
	len     int            // elements
	shape   [4]int
	strides [4]int
}

// F32 returns a dense view of x as float32 [b, heads, rows, dim], row-major.
func F32[T ~float32](x []T, b, heads, rows, dim int) Tensor {
	return dense(Float32, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, dim)
}

// F16 returns a dense view of x, which holds IEEE binary16 bits, as
// [b, heads, rows, dim], row-major.
func F16[T ~uint16](x []T, b, heads, rows, dim int) Tensor {
	return dense(Float16, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, dim)
}

// BF16 returns a dense view of x, which holds bfloat16 bits, as
// [b, heads, rows, dim], row-major.
func BF16[T ~uint16](x []T, b, heads, rows, dim int) Tensor {
	return dense(BFloat16, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, dim)
}

// Bools returns a dense view of x as a mask [b, heads, rows, keys], row-major: true
// takes part. A dimension of length 1 repeats.
func Bools[T ~bool](x []T, b, heads, rows, keys int) Tensor {
	return dense(Bool, unsafe.Pointer(unsafe.SliceData(x)), len(x), b, heads, rows, keys)
}

// Zeros returns a dense tensor [b, heads, rows, dim], row-major, of new memory on the host,
// all zeros; of a mask, all false.
func Zeros(t DType, b, heads, rows, dim int) Tensor {
	n := b * heads * rows * dim
	switch t {
	case Float16:
		return F16(make([]uint16, n), b, heads, rows, dim)
	case BFloat16:
		return BF16(make([]uint16, n), b, heads, rows, dim)
	case Bool:
		return Bools(make([]bool, n), b, heads, rows, dim)
	}
	return F32(make([]float32, n), b, heads, rows, dim)
}

// OnDevice returns a dense view [b, heads, rows, dim], row-major, of so many elements of
// a device's memory from an address on. The owner is told by the backend that owns the
// memory, whose constructors of tensors programs call; without one it is the zero Tensor.
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

// WithStrides returns the same view with other distances, in elements, between
// batches, heads and rows. Inputs may use 0 to repeat a dimension.
func (t Tensor) WithStrides(batch, head, row int) Tensor {
	t.strides = [4]int{batch, head, row, 1}
	return t
}

// AsBSHD returns a view of the same shape whose memory lies as
// [batch, rows, heads, row elements].
func (t Tensor) AsBSHD() Tensor {
	heads, rows, dim := t.shape[1], t.shape[2], t.shape[3]
	return t.WithStrides(rows*heads*dim, dim, heads*dim)
}

// DType returns the storage type.
func (t Tensor) DType() DType { return t.dtype }

// Shape returns [batch, heads, rows, row elements].
func (t Tensor) Shape() [4]int { return t.shape }

// Strides returns the distances in elements; the last one is 1.
func (t Tensor) Strides() [4]int { return t.strides }

// Owner returns what the memory of a tensor on a device belongs to, nil for one on the
// host.
func (t Tensor) Owner() Owner { return t.owner }

// Float32s returns the memory of a Float32 tensor on the host, nil for others.
func (t Tensor) Float32s() []float32 {
	if t.dtype != Float32 || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*float32)(t.mem), t.len)
}

// Uint16s returns the memory of a Float16 or BFloat16 tensor on the host, nil for others.
func (t Tensor) Uint16s() []uint16 {
	if t.dtype != Float16 && t.dtype != BFloat16 || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*uint16)(t.mem), t.len)
}

// Bools returns the memory of a Bool tensor on the host, nil for others.
func (t Tensor) Bools() []bool {
	if t.dtype != Bool || t.owner != nil {
		return nil
	}
	return unsafe.Slice((*bool)(t.mem), t.len)
}

// Len returns the number of elements of the memory behind the view.
func (t Tensor) Len() int { return t.len }

// Address returns the address of the memory's first element, on the host or on the
// device.
func (t Tensor) Address() uintptr {
	if t.owner != nil {
		return t.address
	}
	return uintptr(t.mem)
}

// IsZero reports whether t is the zero Tensor.
func (t Tensor) IsZero() bool { return t.shape == [4]int{} && t.len == 0 }

// Offset returns where row r of head h of batch b begins in the memory.
func (t Tensor) Offset(b, h, r int) int {
	return b*t.strides[0] + h*t.strides[1] + r*t.strides[2]
}

// Repeated returns where row r of head h of batch b begins in the memory of a
// tensor that repeats in every dimension of length 1, as biases and masks do.
func (t Tensor) Repeated(b, h, r int) int {
	at := 0
	for d, i := range [...]int{b, h, r} {
		if t.shape[d] != 1 {
			at += i * t.strides[d]
		}
	}
	return at
}

// isLoose reports whether a row of the view may begin at an address that is no
// multiple of 16 bytes.
func (t *Tensor) isLoose() bool {
	bits := t.Address()
	for d := range 3 {
		if t.shape[d] > 1 {
			bits |= uintptr(t.strides[d] * t.dtype.Size())
		}
	}
	return bits%16 != 0
}

// span returns the addresses from the first element of the view up to but not
// including the end of its last one. The view must not be empty and must fit
// its memory.
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

// isDense reports whether the view certainly reaches every element between its
// first and its last: no stride may step beyond what the smaller ones reach.
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

// byStride returns the free dimensions, the one with the smallest stride first.
func (t *Tensor) byStride() [3]int {
	order := [3]int{0, 1, 2}
	for _, pair := range [3][2]int{{0, 1}, {1, 2}, {0, 1}} {
		if a, b := &order[pair[0]], &order[pair[1]]; t.strides[*b] < t.strides[*a] {
			*a, *b = *b, *a
		}
	}
	return order
}
