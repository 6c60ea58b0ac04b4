package wasm

import (
	"fmt"
	"math"

	"github.com/tetratelabs/wazero/experimental"
)

const (
	pageBytes = 1 << 16  // of WebAssembly
	heapStep  = 64 << 20 // by which Go's heap grows
)

// A share is the memory of one instance, of a size that never changes. Go's heap ends
// the process when it cannot grow, and wazero by itself asks nobody before. So the
// operating system, which may say no, is asked first.
type share struct {
	bytes   []byte
	refused bool // the module asked for more
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

// Reallocate returns the first n bytes, or nil if there are not as many.
func (s *share) Reallocate(n uint64) []byte {
	if n > uint64(len(s.bytes)) {
		s.refused = true
		return nil
	}
	return s.bytes[:n:n]
}

// Free gives the memory back to the collector.
func (s *share) Free() { s.bytes = nil }
