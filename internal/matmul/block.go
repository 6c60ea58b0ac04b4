package matmul

import "unsafe"

// A Block is memory for several Packed matrices, one after the other. It requests large pages,
// which a typical weight matrix alone would not fill. Products with consecutive matrices of a block
// read consecutive memory.
type Block struct{ free []float32 }

const (
	largePage = 1 << 21 // bytes
	lineWords = 16      // words of a cache line
)

// NewBlock returns a block with the given number of 4-byte words, or nil if this number is less
// than 1. Packed matrices need not fill the block.
func NewBlock(words int) *Block {
	n := (words + largePage/4 - 1) / (largePage / 4) * (largePage / 4)
	if words < 1 || n < words {
		return nil
	}
	x := make([]float32, n+largePage/4)
	x = x[int(-uintptr(unsafe.Pointer(&x[0]))%largePage/4):][:n]
	advise(unsafe.Pointer(&x[0]), 4*n)
	return &Block{x[:words]}
}

// Words returns the size of a packed matrix of K rows and N columns in a block.
func Words(p Precision, k, n int) int {
	x := Packed{made: p, isa: chosen.of(p), k: k, n: n}
	return (x.words() + lineWords - 1) / lineWords * lineWords
}

// take returns n words that begin at a cache line, and the words after them. It returns nil if the
// block is nil or has too few words left.
func (b *Block) take(n int) (x, then []float32) {
	if b == nil || n < 1 || n > len(b.free) {
		return nil, nil
	}
	x = b.free[:n:n]
	b.free = b.free[min((n+lineWords-1)/lineWords*lineWords, len(b.free)):]
	return x, b.free
}
