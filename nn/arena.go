package nn

// An arena is a stack allocator. It grows during the first passes and keeps its memory for later
// passes.
type arena struct {
	blocks [][]float32
	at     position
	most   int // largest number of floats in use since the last reset
}

// A position is a place in an arena. The memory below the position is allocated. The memory above
// the position is free.
type position struct{ block, used int }

const (
	lane     = 16      // floats of a cache line; every allocation is rounded up to a multiple
	smallest = 1 << 16 // floats of the smallest block
)

// take allocates n floats and returns them uninitialized.
func (a *arena) take(n int) []float32 {
	size := (n + lane - 1) / lane * lane
	for ; a.at.block < len(a.blocks); a.at = (position{a.at.block + 1, 0}) {
		if b := a.blocks[a.at.block]; size <= len(b)-a.at.used {
			x := b[a.at.used:][:n:n]
			a.at.used += size
			a.most = max(a.most, a.used())
			return x
		}
	}
	a.blocks = append(a.blocks, make([]float32, max(size, smallest, a.size()/4)))
	a.at = position{len(a.blocks) - 1, size}
	a.most = max(a.most, a.used())
	return a.blocks[a.at.block][:n:n]
}

// used returns the number of floats in use. The skipped ends of earlier blocks count as in use.
func (a *arena) used() int {
	n := a.at.used
	for _, b := range a.blocks[:a.at.block] {
		n += len(b)
	}
	return n
}

func (a *arena) size() (n int) {
	for _, b := range a.blocks {
		n += len(b)
	}
	return n
}

// reset frees all allocations. It replaces several blocks by one block of the peak size, so that
// later allocations are contiguous.
func (a *arena) reset() {
	if len(a.blocks) > 1 {
		clear(a.blocks)
		a.blocks = append(a.blocks[:0], make([]float32, a.most))
	}
	a.at, a.most = position{}, 0
}
