package matmul

import (
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit/internal/half"
)

// A float32 is the sum of three bf16, its planes, and a product of two is six products of
// planes; those left out are below half a unit in the last place. Planes leave out what is
// not below 2^58, or NaN: a part of its product could overflow where the sum does not.
const (
	planes   = 3
	wildFrom = 0x1p58
)

// tame reports whether b has nothing that planes leave out.
func (b *Matrix) tame() bool {
	for k := range b.Rows {
		for c := range b.Cols {
			if x := b.Data[k*b.RowStride+c*b.ColStride]; !(x < wildFrom && x > -wildFrom) {
				return false
			}
		}
	}
	return true
}

// packPlanes packs rows as packPairs does, in planes one after the other.
func (p *Packed) packPlanes(b *Matrix, col, width, from, to int) {
	dst, cols, depth := p.pairs[p.at(col, from, width):], min(width, b.Cols-col), p.depth()
	if to == p.k {
		to = 2 * depth // what is beyond K is 0
	}
	for k := from; k < to; k += 2 {
		for i := range planes {
			clear(dst[(i*depth+(k-from)/2)*width:][:width])
		}
		for half := range min(2, max(0, p.k-k)) {
			for c := range cols {
				x := b.Data[(k+half)*b.RowStride+(col+c)*b.ColStride]
				for i, y := range split(x) {
					dst[(i*depth+(k-from)/2)*width+c] |= y << (16 * half)
				}
			}
		}
	}
}

// split returns the planes of x.
func split(x float32) (y [planes]uint32) {
	for i := range y {
		part := half.ToBF16(x)
		y[i] = uint32(part)
		x -= half.FromBF16(part)
	}
	return y
}

// joined returns element (k, col+c) of what packPlanes packed.
func (p *Packed) joined(k, col, width, c int) (x float32) {
	for i := range planes {
		w := p.pairs[p.at(col, k, width)+i*p.depth()*width+c]
		x += half.FromBF16(uint16(w >> (k % 2 * 16)))
	}
	return x
}

// splitPart sets a part's pairs to the planes of its A, and remembers whether some elements
// are left out.
func (j *job) splitPart(p *part, work []float32) {
	pairs, plane := work[j.rounded:], j.rows*j.kBlock/2
	if p.n%32 != 0 {
		clear(pairs[:planes*plane]) // what is beyond K
	}
	p.pairs = (*uint32)(unsafe.Pointer(&pairs[0]))
	p.wild = !j.isa.splitRows((*uint16)(unsafe.Pointer(&pairs[0])), j.kBlock, 4*plane, &p.a.Data[0], p.a.RowStride, p.n, p.rows)
}

// multiplyPlanes adds up a part of planes. What they left out of A is added apart, to its own
// row alone.
func (j *job) multiplyPlanes(p *part) {
	b := j.args.B
	j.isa.planes(&p.sums[0], p.pairs, 2*j.rows*j.kBlock, &b.pairs[b.at(p.col, p.from, p.width)], 4*b.depth()*p.width,
		j.kBlock/2, j.isa.pairsOf(p.n), p.rows, min(p.from, 1))
	if !p.wild {
		return
	}
	for r := range p.rows {
		sums := p.sums[r*p.width:][:p.width]
		for i, x := range p.a.Data[r*p.a.RowStride:][:p.n] {
			if math.Abs(float64(x)) < wildFrom {
				continue
			}
			for c := range sums {
				sums[c] += x * b.joined(p.from+i, p.col, p.width, c)
			}
		}
	}
}
