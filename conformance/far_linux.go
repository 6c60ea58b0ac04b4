package conformance

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"syscall"
)

// spare are mappings that no case has at the moment: an emulator keeps a table of every page
// of each address that was ever mapped, so that a mapping for each case would take gigabytes.
var spare struct {
	sync.Mutex
	list [][]byte
}

// sparse returns farBytes bytes of zeros, of which memory holds what is written alone.
func sparse() (memory []byte, free func(), err error) {
	const noHugePages = 15 // MADV_NOHUGEPAGE: one byte would take two megabytes
	if bits.UintSize < 64 {
		return nil, nil, errors.New("no address has more than 32 bits")
	}
	spare.Lock()
	defer spare.Unlock()
	if n := len(spare.list); n > 0 {
		memory, spare.list = spare.list[n-1], spare.list[:n-1]
	} else {
		bytes := farBytes // not a constant, which an int of 32 bits could not be
		memory, err = syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		if err != nil {
			return nil, nil, fmt.Errorf("no mapping of %d GiB: %w", bytes>>30, err)
		}
		_ = syscall.Madvise(memory, noHugePages) // a kernel without them has no such advice
	}
	return memory, func() { giveBack(memory) }, nil
}

// giveBack makes the memory zeros again, for another case.
func giveBack(memory []byte) {
	if syscall.Madvise(memory, syscall.MADV_DONTNEED) != nil {
		_ = syscall.Munmap(memory)
		return
	}
	spare.Lock()
	defer spare.Unlock()
	spare.list = append(spare.list, memory)
}
