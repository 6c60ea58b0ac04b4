package wasm

import (
	"fmt"
	"math"

	"github.com/tetratelabs/wazero/experimental"
)

const (
	pageBytes = 1 << 16  // bytes of a WebAssembly page
	heapStep  = 64 << 20 // growth step of Go's heap in bytes
)

// A share is the memory of one instance. Its size is fixed. If Go's heap cannot grow, the process
// ends. newShare therefore first checks whether the operating system can supply the memory. If not,
// it returns an error.
type share struct {
	bytes   []byte
	refused bool // the module tried to grow beyond the share
}

func newShare(n uint64) (*share, error) {
	if n > math.MaxInt-heapStep {
		return nil, fmt.Errorf("cannot reserve %d bytes on this platform", n)
	}
	if err := probeMemory(int(n) + heapStep); err != nil {
		return nil, fmt.Errorf("cannot reserve %d bytes: %w", n, err)
	}
	return &share{bytes: make([]byte, n)}, nil
}

// Allocate returns the share itself: an instance has one memory.
func (s *share) Allocate(_, _ uint64) experimental.LinearMemory { return s }

// Reallocate returns the first n bytes, or nil if the share is smaller.
func (s *share) Reallocate(n uint64) []byte {
	if n > uint64(len(s.bytes)) {
		s.refused = true
		return nil
	}
	return s.bytes[:n:n]
}

// Free leaves the memory to the garbage collector.
func (s *share) Free() { s.bytes = nil }
