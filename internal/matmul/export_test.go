package matmul

import (
	"testing"
	"unsafe"
)

// EachISA runs a test with every instruction set of this machine. A Packed of one instruction set
// must not be used with another.
func EachISA(t *testing.T, f func(t *testing.T)) {
	for _, u := range available() {
		t.Run(u.name, func(t *testing.T) {
			defer func(before *isa) { chosen = before }(chosen)
			chosen = u
			f(t)
		})
	}
}

// Tile returns the rows and the columns of a register tile.
func Tile() (rows, cols int) { return chosen.tile, 3 * chosen.lanes }

// MostK is the largest number of products in a partial sum.
const MostK = mostK

// Memory returns the packed words. Words of pairs are returned as floats of the same bits.
func (p *Packed) Memory() []float32 {
	if len(p.pairs) > 0 {
		return unsafe.Slice((*float32)(unsafe.Pointer(&p.pairs[0])), len(p.pairs))
	}
	return p.memory
}
