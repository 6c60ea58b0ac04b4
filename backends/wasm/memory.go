package wasm

import (
	"fmt"
	"math"

	"github.com/tetratelabs/wazero/experimental"
)

const (
	pageBytes = 1 << 16  // of WebAssembly
	heapStep  = 64 << 20 // growth step of Go's heap
)

// A share is the memory of one instance, of fixed size. Go's heap ends the process if it cannot grow,
// and wazero does not check first. So newShare first asks the operating system, which may refuse.
type share struct {
	bytes   []byte
	refused bool // the module requested more
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
