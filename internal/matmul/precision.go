package matmul

import (
	"unsafe"

	"github.com/flashkit-go/flashkit/internal/half"
)

// A Precision is of what a product multiplies. Sums are float32.
type Precision uint8

// bf16 has the exponents of float32 and 8 bits of 24. Rounding is to the nearest, to even.
const (
	Float32     Precision = iota
	BF16Weights           // B is rounded to bf16, and takes half the memory; A is not rounded
	BF16                  // A and B are rounded to bf16; as fast as AMX or AVX512-BF16, where they are
	Precisions            // their number
)

// String returns the name that programs use.
func (p Precision) String() string {
	return [...]string{"f32", "bf16-weights", "bf16", "unknown"}[min(p, Precisions)]
}

// packPairs packs the pairs of rows from and from+1 and so on, up to to, of cols columns of b
// from col on. Pair (k, k+1) of a column is a word, the first one its lower half.
func (p *Packed) packPairs(b *Matrix, col, width, from, to int) {
	dst, cols := p.pairs[p.at(col, from, width):], min(width, b.Cols-col)
	if to == p.k {
		to = 2 * p.depth() // what is beyond K is 0
	}
	for k := from; k < to; k += 2 {
		row := dst[(k-from)/2*width:][:width]
		clear(row[cols:])
		for c := range cols {
			row[c] = p.element(b, k, col+c) | p.element(b, k+1, col+c)<<16
		}
	}
}

// element returns an element of b as bf16.
func (p *Packed) element(b *Matrix, k, col int) uint32 {
	if k >= p.k {
		return 0
	}
	return uint32(half.ToBF16(b.Data[k*b.RowStride+col*b.ColStride]))
}

// widen sets dst, [n][width], to rows of B that are pairs.
func (p *Packed) widen(dst []float32, col, from, n, width int) {
	words := p.pairs[p.at(col, from, width):]
	for k := range n {
		for c, w := range words[k/2*width:][:width] {
			dst[k*width+c] = half.FromBF16(uint16(w >> (k % 2 * 16)))
		}
	}
}

// round rounds the elements of a, which is a copy without gaps, to bf16, and returns them as
// pairs where the routines take these.
func (j *job) round(a *Matrix, work []float32) *uint32 {
	if j.isa.roundRows == nil {
		for i, x := range a.Data {
			a.Data[i] = half.FromBF16(half.ToBF16(x))
		}
		return nil
	}
	pairs := (*uint32)(unsafe.Pointer(&work[j.rounded]))
	j.isa.roundRows(pairs, j.kBlock/2, &a.Data[0], a.RowStride, a.Cols, a.Rows)
	return pairs
}
