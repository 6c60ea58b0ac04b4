package nn

// An arena is memory that is taken in a row and given back in the other order. It grows
// while a first pass shows how much it takes, and then stays.
type arena struct {
	blocks [][]float32
	at     position
	most   int // floats that were in use at a time, since the last reset
}

// A position is a place in an arena, up to which it is in use.
type position struct{ block, used int }

const (
	lane     = 16      // floats of a cache line: what is taken begins at one
	smallest = 1 << 16 // floats of a block
)

// take returns n floats of any values.
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

// used returns how many floats are in use, those at the ends of blocks that were too short
// among them.
func (a *arena) used() int {
	n := a.at.used
	for _, b := range a.blocks[:a.at.block] {
		n += len(b)
	}
	return n
}

// size returns how many floats the arena has.
func (a *arena) size() (n int) {
	for _, b := range a.blocks {
		n += len(b)
	}
	return n
}

// reset gives everything back. Several blocks become one that has room for what was in use,
// so that what follows lies close.
func (a *arena) reset() {
	if len(a.blocks) > 1 {
		clear(a.blocks)
		a.blocks = append(a.blocks[:0], make([]float32, a.most))
	}
	a.at, a.most = position{}, 0
}
