package matmul

import (
	"syscall"
	"unsafe"
)

// advise asks for large pages where memory fills some: reading a panel else ends at each
// page of 4 KiB, and so does the processor's own prefetching. Memory is as good without.
func advise(at unsafe.Pointer, size int) {
	const page, hugePage = 1 << 21, 14 // MADV_HUGEPAGE
	skip, end := int(-uintptr(at)%page), size
	if end -= (end - skip) % page; end <= skip {
		return
	}
	memory := unsafe.Slice((*byte)(at), size)
	_ = syscall.Madvise(memory[skip:end], hugePage) // the kernel may have none
}
