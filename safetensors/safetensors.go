// Package safetensors reads and writes the safetensors file format. A file consists of the header's
// length as 8 little-endian bytes, the header in JSON, and the raw data of the tensors. Decode and
// Encode convert between the tensors of a file and the tensors of package flashkit.
//
// Parse and Read are safe for untrusted files: they never panic. The size of the file limits their
// allocations, whatever numbers the header has. Functions are safe for concurrent use.
package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

const (
	lengthSize  = 8           // size in bytes of the header length at the start of a file
	maxHeader   = 100_000_000 // maximum header length in bytes, as in the reference implementation
	metadataKey = "__metadata__"
)

// A File is the content of a safetensors file: named tensors, and metadata.
type File struct {
	// Metadata maps keys to free text. It is nil if the file has no metadata.
	Metadata map[string]string
	// Tensors has the tensors in the order of their data in the file.
	Tensors []Tensor
}

// A Tensor is a named array of a file.
type Tensor struct {
	// Name is unique in the file, and not "__metadata__".
	Name string
	// DType is the format's name of the element type: BOOL, U8, I8, U16, I16, F16, BF16, U32, I32,
	// F32, U64, I64, F64, C64, or an 8-bit type such as F8_E4M3. In F4, F6_E2M3 and F6_E3M2,
	// several elements share bytes. Parse keeps tensors of these three types and of unknown types,
	// but no method decodes their Data.
	DType string
	// Shape is empty for a scalar. A dimension may be zero.
	Shape []int
	// Data is little-endian and row-major. The result of Parse aliases the input.
	Data []byte
}

// Tensor returns the tensor of the given name and whether the file has it.
func (f *File) Tensor(name string) (Tensor, bool) {
	i := slices.IndexFunc(f.Tensors, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return Tensor{}, false
	}
	return f.Tensors[i], true
}

// Require returns the tensor of the given name, or an error that lists tensors of the file.
func (f *File) Require(name string) (Tensor, error) {
	t, ok := f.Tensor(name)
	if !ok {
		return t, fmt.Errorf("safetensors: tensor %.60q is missing: %s", name, f.nearest(name))
	}
	return t, nil
}

// nearest returns a list of tensors of the file, for an error. Similar names come first.
func (f *File) nearest(name string) string {
	const most = 6
	var similar, others []string
	for _, t := range f.Tensors {
		if strings.EqualFold(t.Name, name) || strings.HasSuffix(t.Name, "."+name) {
			similar = append(similar, fmt.Sprintf("%.60q", t.Name))
		} else if len(others) < most {
			others = append(others, fmt.Sprintf("%.60q", t.Name))
		}
	}
	list := append(similar, others...)
	list = list[:min(most, len(list))]
	switch left := len(f.Tensors) - len(list); {
	case len(list) == 0:
		return "the file has no tensors"
	case left > 0:
		return fmt.Sprintf("the file has %s and %d more", strings.Join(list, ", "), left)
	}
	return "the file has " + strings.Join(list, ", ")
}

// FromFloat32s returns an F32 tensor with a copy of x. If the length of x does not match the shape,
// File.Write returns an error. The same holds for FromUint16s and FromInt32s.
func FromFloat32s(name string, shape []int, x []float32) Tensor {
	return fromSlice(name, "F32", shape, x)
}

// FromUint16s returns a tensor of the 16-bit type dtype, such as F16 or BF16. x holds the bits of
// the elements and is copied.
func FromUint16s(name, dtype string, shape []int, x []uint16) Tensor {
	return fromSlice(name, dtype, shape, x)
}

func fromSlice(name, dtype string, shape []int, x any) Tensor {
	data, _ := binary.Append([]byte{}, binary.LittleEndian, x) // no error is possible, because the elements have a fixed size
	return Tensor{Name: name, DType: dtype, Shape: slices.Clone(shape), Data: data}
}

// Float32s returns a copy of the elements of an F32 tensor. For a tensor of another type it returns
// an error.
func (t Tensor) Float32s() ([]float32, error) {
	return decode[float32](t, "F32")
}

// Uint16s returns a copy of the elements of an F16 or BF16 tensor, as bits. For a tensor of another
// type it returns an error.
func (t Tensor) Uint16s() ([]uint16, error) {
	return decode[uint16](t, "F16", "BF16")
}

func decode[E byte | int8 | float32 | uint16 | int32 | int64](t Tensor, dtypes ...string) ([]E, error) {
	err := t.check()
	if err == nil && !slices.Contains(dtypes, t.DType) {
		err = fmt.Errorf("dtype is %s, want %s", t.DType, strings.Join(dtypes, " or "))
	}
	if err != nil {
		return nil, t.wrong(err)
	}
	x := make([]E, len(t.Data)/dtypeSizes[t.DType])
	_, err = binary.Decode(t.Data, binary.LittleEndian, x)
	return x, err
}

// check returns an error unless the size of the data matches dtype and shape.
func (t Tensor) check() error {
	size, err := byteSize(t.DType, t.Shape)
	if err == nil && size != len(t.Data) {
		err = fmt.Errorf("data has %d bytes, want %d for the dtype and shape", len(t.Data), size)
	}
	return err
}

// dtypeSizes holds the bytes per element.
var dtypeSizes = map[string]int{
	"BOOL": 1, "U8": 1, "I8": 1,
	"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
	"U16": 2, "I16": 2, "F16": 2, "BF16": 2,
	"U32": 4, "I32": 4, "F32": 4,
	"U64": 8, "I64": 8, "F64": 8, "C64": 8,
}

// packedBits holds the bits per element of types that do not fill whole bytes. Elements may cross
// byte boundaries, but the tensor must end at a byte boundary.
var packedBits = map[string]int{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

// known reports whether dtypeSizes or packedBits lists the type.
func known(dtype string) bool { return dtypeSizes[dtype] > 0 || packedBits[dtype] > 0 }

// byteSize returns the size of a tensor's data in bytes.
func byteSize(dtype string, shape []int) (int, error) {
	if bits := packedBits[dtype]; bits > 0 {
		n, err := sizeOf(bits, shape)
		if err == nil && n%8 != 0 {
			err = fmt.Errorf("shape has %d bits of %s, which end within a byte", n, dtype)
		}
		return n / 8, err
	}
	size, ok := dtypeSizes[dtype]
	if !ok {
		return 0, fmt.Errorf("dtype %.60q is unknown", dtype)
	}
	return sizeOf(size, shape)
}

// sizeOf returns the product of size and the dimensions of shape.
func sizeOf(size int, shape []int) (int, error) {
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape has the negative dimension %d", d)
		}
		if d > 0 && size > math.MaxInt/d {
			return 0, fmt.Errorf("shape is too large: its size in bytes overflows int at dimension %d", d)
		}
		size *= d
	}
	return size, nil
}
