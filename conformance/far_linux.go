package conformance

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"syscall"
)

// spare holds unused mappings for reuse. An emulator such as QEMU keeps page tables for every
// address ever mapped, so a new mapping for each case would take gigabytes.
var spare struct {
	sync.Mutex
	list [][]byte
}

// sparse returns farBytes bytes of zeros. Only pages that the caller writes take memory.
func sparse() (memory []byte, free func(), err error) {
	const noHugePages = 15 // MADV_NOHUGEPAGE: with huge pages one byte would take two megabytes
	if bits.UintSize < 64 {
		return nil, nil, errors.New("no address has more than 32 bits")
	}
	spare.Lock()
	defer spare.Unlock()
	if n := len(spare.list); n > 0 {
		memory, spare.list = spare.list[n-1], spare.list[:n-1]
	} else {
		bytes := farBytes // a variable, as the constant overflows a 32-bit int
		memory, err = syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		if err != nil {
			return nil, nil, fmt.Errorf("no mapping of %d GiB: %w", bytes>>30, err)
		}
		_ = syscall.Madvise(memory, noHugePages) // on a kernel without huge pages the error does not matter
	}
	return memory, func() { giveBack(memory) }, nil
}

// giveBack zeroes the memory and keeps it for reuse.
func giveBack(memory []byte) {
	if syscall.Madvise(memory, syscall.MADV_DONTNEED) != nil {
		_ = syscall.Munmap(memory)
		return
	}
	spare.Lock()
	defer spare.Unlock()
	spare.list = append(spare.list, memory)
}
