package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// view converts a C tensor to a flashkit tensor. It does not read the tensor's elements.
func (f *frame) view(t *C.fk_tensor, to *flashkit.Tensor, name string) error {
	if word(&t.data) == 0 && t.shape == [4]C.int64_t{} {
		return nil
	}
	if t.dtype < 0 || t.dtype > C.FK_I8 {
		return wrong(C.FK_ERR_DTYPE, name+".dtype", t.dtype, "must be one of FK_F32, FK_F16, FK_BF16, FK_BOOL, FK_I32 and FK_I8")
	}
	dtype := flashkit.DType(t.dtype)
	n, err := length(t, dtype.Size(), name)
	if err != nil {
		return err
	}
	b, h, r, d := int(t.shape[0]), int(t.shape[1]), int(t.shape[2]), int(t.shape[3])
	batch, head, row := int(t.strides[0]), int(t.strides[1]), int(t.strides[2])
	switch {
	case t.device == C.FK_HOST:
	case t.device >= C.FK_CUDA && t.device <= lastDevice:
		*to = flashkit.OnDevice(f.owner(t.device), dtype, word(&t.data), n, b, h, r, d).WithStrides(batch, head, row)
		return nil
	default:
		return wrong(C.FK_ERR_VALUE, name+".device", t.device, "must be FK_HOST, or FK_CUDA and the number of a GPU, up to %d", lastDevice)
	}
	var mem unsafe.Pointer
	if n > 0 { // the address of an empty tensor may be invalid
		mem = t.data
	}
	switch dtype {
	case flashkit.Float32:
		*to = flashkit.F32(unsafe.Slice((*float32)(mem), n), b, h, r, d).WithStrides(batch, head, row)
	case flashkit.Float16:
		*to = flashkit.F16(unsafe.Slice((*uint16)(mem), n), b, h, r, d).WithStrides(batch, head, row)
	case flashkit.BFloat16:
		*to = flashkit.BF16(unsafe.Slice((*uint16)(mem), n), b, h, r, d).WithStrides(batch, head, row)
	case flashkit.Int32:
		*to = flashkit.Int32s(unsafe.Slice((*int32)(mem), n), b, h, r, d).WithStrides(batch, head, row)
	case flashkit.Int8:
		*to = flashkit.Int8s(unsafe.Slice((*int8)(mem), n), b, h, r, d).WithStrides(batch, head, row)
	case flashkit.Bool:
		*to = flashkit.Bools(unsafe.Slice((*bool)(mem), n), b, h, r, d).WithStrides(batch, head, row)
	}
	return nil
}

// lastDevice is the largest allowed fk_tensor.device. No machine has that number of GPUs.
const lastDevice = 1 << 10

func (f *frame) owner(number C.int32_t) flashkit.Owner {
	if f.device != nil && f.device.number == number {
		return f.device.memory
	}
	return unopened(number - C.FK_CUDA)
}

// An unopened is the owner of tensors on a GPU that the call has not opened. A call opens only the
// GPU of Q, and none if it does not run the pass.
type unopened int

func (n unopened) Device() string { return fmt.Sprintf("GPU %d", int(n)) }

// length returns the number of elements of memory from a view's first element to its last element.
func length(t *C.fk_tensor, size int, name string) (int, error) {
	for d, n := range t.shape {
		if n < 0 {
			return 0, wrong(C.FK_ERR_DIMENSION, element(name+".shape", d), n, "must not be negative")
		}
	}
	for _, n := range t.shape {
		if n == 0 {
			return 0, nil
		}
	}
	at := word(&t.data)
	if at == 0 {
		return 0, &failure{C.FK_ERR_NULL, name + ".data", "flashkit: " + name + ".data: is NULL"}
	}
	if reason := addressFault(at, size); reason != "" {
		return 0, wrong(C.FK_ERR_STRIDE, name+".data", hex(at), "%s", reason)
	}
	most := min(math.MaxInt64, uint64(math.MaxUint-at))/uint64(size) - 1 // the largest index that does not overflow an address
	last := uint64(0)
	for d, n := range t.shape {
		stride := t.strides[d]
		switch {
		case n == 1:
			continue
		case stride < 0:
			return 0, wrong(C.FK_ERR_STRIDE, element(name+".strides", d), stride, "must not be negative")
		case d == 3 && stride != 1:
			return 0, wrong(C.FK_ERR_STRIDE, element(name+".strides", d), stride, "must be 1: the elements of a row are contiguous")
		}
		over, reach := bits.Mul64(uint64(n-1), uint64(stride))
		if over != 0 || reach > most-last {
			return 0, wrong(C.FK_ERR_STRIDE, element(name+".strides", d), stride, "reaches beyond what can be addressed; shape %v", t.shape)
		}
		last += reach
	}
	return int(last + 1), nil
}

// addressFault returns a reason if the number at cannot be the address of elements of the given
// size, else "". It rejects small numbers, because the Go runtime treats a pointer with such a
// value as memory corruption.
func addressFault(at uintptr, size int) string {
	switch {
	case at < 4096:
		return "is no address"
	case at%uintptr(size) != 0:
		return fmt.Sprintf("must be a multiple of an element's size, %d", size)
	}
	return ""
}

func hex(at uintptr) string { return fmt.Sprintf("%#x", at) }

func element(name string, i int) string { return fmt.Sprintf("%s[%d]", name, i) }
