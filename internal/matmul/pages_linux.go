package matmul

import (
	"syscall"
	"unsafe"
)

// advise requests large pages. With small pages, the reads of a panel and the hardware prefetcher
// are interrupted every 4 KiB. advise ignores errors, because small pages only make products
// slower.
func advise(at unsafe.Pointer, size int) {
	const page, hugePage = 1 << 21, 14 // MADV_HUGEPAGE
	skip, end := int(-uintptr(at)%page), size
	if end -= (end - skip) % page; end <= skip {
		return
	}
	memory := unsafe.Slice((*byte)(at), size)
	_ = syscall.Madvise(memory[skip:end], hugePage) // the kernel may have no large pages
}
