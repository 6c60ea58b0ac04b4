// Package hostmem returns the bytes of tensors in host memory.
package hostmem

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// Bytes returns the memory of t, which must be in host memory, whatever its type. The result aliases
// the elements, in the machine's byte order.
func Bytes(t *flashkit.Tensor) []byte {
	var p unsafe.Pointer
	switch t.DType() {
	case flashkit.Float32:
		p = unsafe.Pointer(unsafe.SliceData(t.Float32s()))
	case flashkit.Int32:
		p = unsafe.Pointer(unsafe.SliceData(t.Int32s()))
	case flashkit.Int8:
		p = unsafe.Pointer(unsafe.SliceData(t.Int8s()))
	case flashkit.Bool:
		p = unsafe.Pointer(unsafe.SliceData(t.Bools()))
	default:
		p = unsafe.Pointer(unsafe.SliceData(t.Uint16s()))
	}
	return unsafe.Slice((*byte)(p), t.Len()*t.DType().Size())
}
