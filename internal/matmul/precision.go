package matmul

import (
	"unsafe"

	"github.com/flashkit-go/flashkit/internal/half"
)

// A Precision is the format of a product's operands. Sums are float32.
type Precision uint8

// bf16 has the exponents of float32 and 8 of its 24 significant bits. Rounding is to nearest, ties to even.
// Int8 has one scale for each row of A and for each column of B.
const (
	Float32     Precision = iota
	BF16Weights           // B is rounded to bf16 and takes half the memory; A is not rounded
	BF16                  // A and B are rounded to bf16; fast with AMX or AVX512-BF16
	Int8                  // A and B are rounded to 8-bit integers, with exact sums; K is at most 2^17
	Precisions            // number of precisions
)

// String returns the name that programs use.
func (p Precision) String() string {
	return [...]string{"f32", "bf16-weights", "bf16", "int8", "unknown"}[min(p, Precisions)]
}

// packPairs packs rows [from, to) of a panel, as pairs of rows. The panel has width columns from
// col on. In each column, the word for rows k and k+1 has row k in its lower half.
func (p *Packed) packPairs(b *Matrix, col, width, from, to int) {
	dst, cols := p.pairs[p.at(col, from, width):], min(width, b.Cols-col)
	if to == p.k {
		to = 2 * p.depth() // rows beyond K are 0
	}
	for k := from; k < to; k += 2 {
		row := dst[(k-from)/2*width:][:width]
		clear(row[cols:])
		for c := range cols {
			row[c] = p.element(b, k, col+c) | p.element(b, k+1, col+c)<<16
		}
	}
}

// element returns an element of b as bf16, or 0 in a row beyond K.
func (p *Packed) element(b *Matrix, k, col int) uint32 {
	if k >= p.k {
		return 0
	}
	return uint32(half.ToBF16(b.Data[k*b.RowStride+col*b.ColStride]))
}

// widen sets dst, [n][width], to rows [from, from+n) of the panel that begins at column col,
// widened to float32.
func (p *Packed) widen(dst []float32, col, from, n, width int) {
	words := p.pairs[p.at(col, from, width):]
	for k := range n {
		for c, w := range words[k/2*width:][:width] {
			dst[k*width+c] = half.FromBF16(uint16(w >> (k % 2 * 16)))
		}
	}
}

// round rounds the elements of a to bf16. If the instruction set has the routine roundRows, round
// returns the address of pairs in work. Otherwise a must be a contiguous copy: round then rounds
// the elements of a in place and returns nil.
func (j *job) round(a *Matrix, work []float32) *uint32 {
	if j.isa.roundRows == nil {
		for i, x := range a.Data {
			a.Data[i] = half.FromBF16(half.ToBF16(x))
		}
		return nil
	}
	pairs := (*uint32)(unsafe.Pointer(&work[j.rounded]))
	j.isa.roundRows(pairs, j.kBlock/2, lineWords, &a.Data[0], a.RowStride, a.Cols, a.Rows)
	return pairs
}
