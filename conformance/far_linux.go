package conformance

import (
	"errors"
	"fmt"
	"math/bits"
	"syscall"
)

// sparse returns so many bytes of zeros, of which memory holds what is written alone.
func sparse(n uint64) (memory []byte, free func(), err error) {
	const noHugePages = 15 // MADV_NOHUGEPAGE: one byte would take two megabytes
	if bits.UintSize < 64 {
		return nil, nil, errors.New("no address has more than 32 bits")
	}
	memory, err = syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, nil, fmt.Errorf("no mapping of %d GiB: %w", n>>30, err)
	}
	_ = syscall.Madvise(memory, noHugePages) // a kernel without them has no such advice
	return memory, func() { _ = syscall.Munmap(memory) }, nil
}
