// Package npy reads NumPy's .npy files of numbers or booleans, in C order and little endian.
//
// Files are not trusted. Parse never panics. The memory that Parse allocates depends on the length
// of the input, never on a number in the header.
package npy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/flashkit-go/flashkit/internal/foreign"
)

const magic = "\x93NUMPY"

// An Array is the content of a .npy file.
type Array struct {
	// DType is the safetensors name of the element type: "F16", "F32", "F64", "BOOL", "U8", "I32"
	// or "I64".
	DType string
	// Shape is empty for a scalar. A dimension may be zero.
	Shape []int
	// Data is little endian and row-major. It aliases the input of Parse.
	Data []byte
}

// Parse reads a file of format version 1.0, 2.0 or 3.0.
func Parse(b []byte) (*Array, error) {
	a, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("npy: %w", err)
	}
	return a, nil
}

func parse(b []byte) (*Array, error) {
	text, data, err := split(b)
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(text)
	if err != nil {
		return nil, err
	}
	dtype, size, err := element(h.descr)
	if err != nil {
		return nil, err
	}
	if h.fortran && !ordersAgree(h.shape) {
		return nil, errors.New("fortran_order is True, want C order")
	}
	for _, d := range h.shape {
		if d > 0 && size > math.MaxInt/d {
			return nil, fmt.Errorf("shape is too large: its size in bytes overflows int at dimension %d", d)
		}
		size *= d
	}
	if size != len(data) {
		return nil, fmt.Errorf("data has %d bytes, want %d for the descr and shape", len(data), size)
	}
	return &Array{DType: dtype, Shape: h.shape, Data: data}, nil
}

func split(b []byte) (string, []byte, error) {
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if other := foreign.Format(b); !ok && other != "" {
		return "", nil, fmt.Errorf("the file is %s", other)
	}
	if !ok {
		return "", nil, fmt.Errorf("file starts with %.6q, want %q", b, magic)
	}
	if len(rest) < 2 {
		return "", nil, errors.New("file ends before its format version")
	}
	major, minor, rest := rest[0], rest[1], rest[2:]
	lengthSize := 4
	switch {
	case minor != 0 || major < 1 || major > 3:
		return "", nil, fmt.Errorf("format version %d.%d is unknown", major, minor)
	case major == 1:
		lengthSize = 2
	}
	if len(rest) < lengthSize {
		return "", nil, errors.New("file ends before its header length")
	}
	var length [4]byte
	copy(length[:], rest[:lengthSize])
	n, rest := binary.LittleEndian.Uint32(length[:]), rest[lengthSize:]
	if uint64(n) > uint64(len(rest)) {
		return "", nil, fmt.Errorf("header length %d is above the %d bytes that follow it", n, len(rest))
	}
	return string(rest[:n]), rest[n:], nil
}

// elements maps the supported descr strings of NumPy to element types.
var elements = map[string]struct {
	dtype string
	size  int
}{
	"<f2": {"F16", 2}, "<f4": {"F32", 4}, "<f8": {"F64", 8},
	"|b1": {"BOOL", 1}, "|u1": {"U8", 1}, "<i4": {"I32", 4}, "<i8": {"I64", 8},
}

// element returns the dtype for a descr and the bytes of one element.
func element(descr string) (dtype string, size int, err error) {
	const want = "want '<f2', '<f4', '<f8', '|b1', '|u1', '<i4' or '<i8'"
	if e, ok := elements[descr]; ok {
		return e.dtype, e.size, nil
	}
	if strings.HasPrefix(descr, ">") {
		return "", 0, fmt.Errorf("descr %.60q is big endian, %s", descr, want)
	}
	return "", 0, fmt.Errorf("descr %.60q is not supported, %s", descr, want)
}

// ordersAgree reports whether C and Fortran order are the same: at most one dimension exceeds 1.
func ordersAgree(shape []int) bool {
	long := 0
	for _, d := range shape {
		if d > 1 {
			long++
		}
	}
	return long <= 1
}
