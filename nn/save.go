package nn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unsafe"

	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/safetensors"
)

// Save writes the parameters' data as a safetensors file, with the metadata if it is not nil. Equal
// arguments give equal bytes.
func Save(w io.Writer, params []*Param, metadata map[string]string) error {
	f := safetensors.File{Metadata: metadata}
	for _, p := range params {
		f.Tensors = append(f.Tensors, safetensors.FromFloat32s(p.Name, p.Shape, p.Data))
	}
	return f.Write(w)
}

// Load fills the parameters from a safetensors file and returns the file's metadata. A missing
// tensor, a wrong shape, a type other than F32 and a tensor without a parameter are errors. Load
// returns all errors of a file together, and then leaves the parameters unchanged. No pass may use
// the parameters during Load.
func Load(file []byte, params []*Param) (metadata map[string]string, err error) {
	f, err := safetensors.Parse(file)
	if err != nil {
		return nil, err
	}
	return f.Metadata, Assign(f, params)
}

// Assign fills the parameters from a parsed safetensors file. It returns the same errors as Load.
func Assign(f *safetensors.File, params []*Param) error {
	tensors := make(map[string]safetensors.Tensor, len(f.Tensors))
	for _, t := range f.Tensors {
		tensors[t.Name] = t
	}
	var errs []error
	data := make([][]float32, len(params))
	for i, p := range params {
		t, ok := tensors[p.Name]
		delete(tensors, p.Name)
		if !ok {
			errs = append(errs, fmt.Errorf("nn: tensor %.80q is missing, or there twice among the parameters", p.Name))
			continue
		}
		x, err := tensorData(t, p.Shape, "F32")
		if err != nil {
			errs = append(errs, err)
		}
		data[i] = x
	}
	for _, t := range f.Tensors {
		if _, left := tensors[t.Name]; left {
			errs = append(errs, fmt.Errorf("nn: tensor %.80q belongs to no parameter", t.Name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, p := range params {
		copy(p.Data, data[i])
		p.Changed()
	}
	return nil
}

// tensorData returns the elements of a tensor of the given shape and one of the given types, which
// may be F32, F16 and BF16. The elements of an F32 tensor are not copied if possible.
func tensorData(t safetensors.Tensor, shape []int, types ...string) ([]float32, error) {
	switch {
	case !slices.Contains(types, t.DType):
		return nil, problem("tensor "+t.Name, t.DType, "must be %s", strings.Join(types, ", "))
	case !slices.Equal(t.Shape, shape):
		return nil, problem("tensor "+t.Name, fmt.Sprint(t.Shape), "must be of shape %v", shape)
	}
	if t.DType != "F32" {
		return fromHalf(t)
	}
	if x := inPlace(t.Data); len(x) == countOf(shape) {
		return x, nil
	}
	return t.Float32s()
}

// fromHalf returns the elements of an F16 or BF16 tensor as float32.
func fromHalf(t safetensors.Tensor) ([]float32, error) {
	bits, err := t.Uint16s()
	x, from := make([]float32, len(bits)), half.FromF16
	if t.DType == "BF16" {
		from = half.FromBF16
	}
	for i, b := range bits {
		x[i] = from(b)
	}
	return x, err
}

// inPlace returns little-endian bytes as floats without a copy. It returns nil if the machine is
// big-endian, or the bytes are not aligned to floats.
func inPlace(b []byte) []float32 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) == 0 || len(b)%4 != 0 || uintptr(p)%4 != 0 || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil
	}
	return unsafe.Slice((*float32)(p), len(b)/4)
}
