package matmul

import "unsafe"

// A Block is memory that several Packed take one after the other. It has large pages, which
// most weights do not fill by themselves, and products that follow each other read on where
// the last one ended.
type Block struct{ free []float32 }

const (
	largePage = 1 << 21 // bytes
	lineWords = 16      // of a cache line
)

// NewBlock returns a block of so many words, which what is packed later may but need not fill.
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

// take returns n words that begin with a cache line, and those after them, or nil where the
// block, which may be nil, has too few left.
func (b *Block) take(n int) (x, then []float32) {
	if b == nil || n < 1 || n > len(b.free) {
		return nil, nil
	}
	x = b.free[:n:n]
	b.free = b.free[min((n+lineWords-1)/lineWords*lineWords, len(b.free)):]
	return x, b.free
}
