package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// Decode returns the tensors with the given names, in the order of the names, converted by
// Tensor.Decode. A missing name is an error.
func (f *File) Decode(names ...string) ([]flashkit.Tensor, error) {
	list := make([]flashkit.Tensor, len(names))
	for i, name := range names {
		t, err := f.Require(name)
		if err != nil {
			return nil, err
		}
		if list[i], err = t.Decode(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Decode returns a flashkit tensor [batch, heads, rows, elements] with a copy of the data. Missing
// leading dimensions become 1. F32, F16 and BF16 keep their type. BOOL and U8 become Bool: a
// nonzero byte becomes true. Other types and more than four dimensions are errors.
func (t Tensor) Decode() (flashkit.Tensor, error) {
	s, err := t.shape4()
	if err != nil {
		return flashkit.Tensor{}, err
	}
	return t.view(s)
}

// DecodeBSHD is Decode for data in the order [batch, rows, heads, elements]. The result has the
// shape [batch, heads, rows, elements]. The strides of the result describe the order of the data,
// so the data is not reordered.
func (t Tensor) DecodeBSHD() (flashkit.Tensor, error) {
	s, err := t.shape4()
	if err != nil {
		return flashkit.Tensor{}, err
	}
	s[1], s[2] = s[2], s[1]
	x, err := t.view(s)
	return x.AsBSHD(), err
}

func (t Tensor) shape4() (s [4]int, err error) {
	if n := len(t.Shape); n > len(s) {
		return s, t.wrong(fmt.Errorf("shape %v has %d dimensions, want at most %d", t.Shape, n, len(s)))
	}
	s = [4]int{1, 1, 1, 1}
	copy(s[len(s)-len(t.Shape):], t.Shape)
	return s, nil
}

func (t Tensor) view(s [4]int) (x flashkit.Tensor, err error) {
	switch t.DType {
	case "F32":
		var data []float32
		data, err = t.Float32s()
		x = flashkit.F32(data, s[0], s[1], s[2], s[3])
	case "F16", "BF16":
		var data []uint16
		data, err = t.Uint16s()
		if x = flashkit.F16(data, s[0], s[1], s[2], s[3]); t.DType == "BF16" {
			x = flashkit.BF16(data, s[0], s[1], s[2], s[3])
		}
	case "BOOL", "U8":
		var data []byte
		data, err = decode[byte](t, t.DType)
		flags := make([]bool, len(data)) // a bool must be 0 or 1 in memory
		for i, b := range data {
			flags[i] = b != 0
		}
		x = flashkit.Bools(flags, s[0], s[1], s[2], s[3])
	case "I32":
		var data []int32
		data, err = t.Int32s()
		x = flashkit.Int32s(data, s[0], s[1], s[2], s[3])
	case "I8":
		var data []int8
		data, err = decode[int8](t, t.DType)
		x = flashkit.Int8s(data, s[0], s[1], s[2], s[3])
	default:
		err = t.wrong(fmt.Errorf("dtype is %.60s, want F32, F16, BF16, BOOL, U8, I32 or I8", t.DType))
	}
	if err != nil {
		return flashkit.Tensor{}, err
	}
	return x, nil
}

// Encode returns a file tensor with a copy of x's elements in row-major order of x's shape,
// whatever the strides of x are. Float32 becomes F32, Float16 becomes F16, BFloat16 becomes BF16,
// Bool becomes BOOL, Int32 becomes I32 and Int8 becomes I8. Encode returns an error if x is on a device, or if the shape and strides
// of x reach beyond the memory of x.
func Encode(name string, x flashkit.Tensor) (Tensor, error) {
	return encode(name, x, func(s [4]int) [4]int { return s })
}

// EncodeBSHD is Encode with elements and shape in the order [batch, rows, heads, elements].
func EncodeBSHD(name string, x flashkit.Tensor) (Tensor, error) {
	return encode(name, x, func(s [4]int) [4]int { return [4]int{s[0], s[2], s[1], s[3]} })
}

// fileTypes maps the element types of package flashkit to their names in the format.
var fileTypes = map[flashkit.DType]string{flashkit.Float32: "F32", flashkit.Float16: "F16", flashkit.BFloat16: "BF16", flashkit.Bool: "BOOL", flashkit.Int32: "I32", flashkit.Int8: "I8"}

func encode(name string, x flashkit.Tensor, order func([4]int) [4]int) (Tensor, error) {
	shape, strides := order(x.Shape()), order(x.Strides())
	t := Tensor{Name: name, DType: fileTypes[x.DType()], Shape: shape[:]}
	size, err := byteSize(t.DType, t.Shape)
	if err == nil && x.Owner() != nil {
		err = fmt.Errorf("lies on %s, not on the host", x.Owner().Device())
	}
	if err == nil && size > 0 {
		err = within(shape, strides, x.Len())
	}
	if err != nil {
		return Tensor{}, t.wrong(err)
	}
	t.Data = make([]byte, 0, size)
	if size == 0 {
		return t, nil
	}
	for b := range shape[0] {
		for h := range shape[1] {
			for r := range shape[2] {
				at := b*strides[0] + h*strides[1] + r*strides[2]
				t.Data = appendRow(t.Data, x, at, at+shape[3])
			}
		}
	}
	return t, nil
}

// appendRow appends the elements of a row, little-endian.
func appendRow(b []byte, x flashkit.Tensor, from, to int) []byte {
	switch x.DType() {
	case flashkit.Float32:
		for _, v := range x.Float32s()[from:to] {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	case flashkit.Int32:
		for _, v := range x.Int32s()[from:to] {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
	case flashkit.Int8:
		for _, v := range x.Int8s()[from:to] {
			b = append(b, byte(v))
		}
	case flashkit.Bool:
		for _, v := range x.Bools()[from:to] {
			one := byte(0)
			if v {
				one = 1
			}
			b = append(b, one)
		}
	default:
		for _, v := range x.Uint16s()[from:to] {
			b = binary.LittleEndian.AppendUint16(b, v)
		}
	}
	return b
}

// within returns an error if a view with the given shape and strides reaches beyond a memory of n
// elements.
func within(shape, strides [4]int, n int) error {
	last := shape[3] - 1
	for d := range 3 {
		if shape[d] == 1 {
			continue
		}
		if strides[d] < 0 || strides[d] > 0 && shape[d]-1 > (n-1-last)/strides[d] {
			return fmt.Errorf("shape %v with strides %v reaches beyond its %d elements", shape, strides, n)
		}
		last += (shape[d] - 1) * strides[d]
	}
	if last >= n {
		return fmt.Errorf("shape %v reaches beyond its %d elements", shape, n)
	}
	return nil
}

// Int64s returns a copy of the elements of an I32 or I64 tensor. For a tensor of another type it
// returns an error.
func (t Tensor) Int64s() ([]int64, error) {
	if t.DType == "I64" {
		return decode[int64](t, "I64")
	}
	short, err := decode[int32](t, "I32", "I64")
	x := make([]int64, len(short))
	for i := range x {
		x[i] = int64(short[i])
	}
	return x, err
}

// Int32s returns a copy of the elements of an I32 or I64 tensor, in the type of the lengths, starts
// and pages of flashkit.Sequences. An element that does not fit in 32 bits is an error.
func (t Tensor) Int32s() ([]int32, error) {
	long, err := t.Int64s()
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(long, func(n int64) bool { return n != int64(int32(n)) }); i >= 0 {
		return nil, t.wrong(fmt.Errorf("element %d = %d is beyond 32 bits", i, long[i]))
	}
	x := make([]int32, len(long))
	for i := range x {
		x[i] = int32(long[i])
	}
	return x, nil
}

// FromInt32s returns an I32 tensor with a copy of x.
func FromInt32s(name string, shape []int, x []int32) Tensor {
	return fromSlice(name, "I32", shape, x)
}

func (t Tensor) wrong(err error) error {
	return fmt.Errorf("safetensors: tensor %.60q: %w", t.Name, err)
}
