package matmul

import (
	"syscall"
	"unsafe"
)

// advise asks for large pages where memory fills some: reading a panel else ends at each
// page of 4 KiB, and so does the processor's own prefetching. Memory is as good without.
func advise(x []float32) {
	const page, hugePage = 1 << 21, 14 // MADV_HUGEPAGE
	from := uintptr(unsafe.Pointer(unsafe.SliceData(x)))
	skip, end := int(-from%page), 4*len(x)
	if end -= (end - skip) % page; end <= skip {
		return
	}
	memory := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
	_ = syscall.Madvise(memory[skip:end], hugePage) // the kernel may have none
}
