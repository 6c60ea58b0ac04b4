package matmul

import (
	"math/bits"
	"unsafe"
)

// Packed is B in consecutive panels, as wide as a register tile: [K][width] floats, [K/2][width]
// pairs of bf16, or integers: see packInt8. Columns beyond N are 0. Concurrent products may share a Packed, but no product may
// run during Pack.
type Packed struct {
	Precision Precision // of the next Pack and of the products after it
	Scale     []float32 // nil or K factors of A's columns, for Int8: see checkScale; other precisions ignore them

	memory []float32 // for Float32
	pairs  []uint32  // for other precisions
	then   []float32 // the block's memory after this matrix
	k, n   int
	made   Precision // precision of the last Pack
	isa    *isa
	err    error // of the last Pack
}

// Dims returns K and N.
func (p *Packed) Dims() (k, n int) { return p.k, p.n }

// Pack makes p the packed form of b. It reuses p's memory if that is large enough. b must not reach
// beyond its memory or have more elements than its memory. Otherwise every product with p returns a
// *flashkit.ProblemError.
func (p *Packed) Pack(b Matrix) { p.PackIn(nil, b) }

// PackIn does the work of Pack in memory of a block, if the block has enough memory left. Otherwise
// it uses separate memory, as Pack does.
func (p *Packed) PackIn(block *Block, b Matrix) {
	p.begin(&b, block)
	for item := range p.items(&b) {
		p.pack(&b, int(item))
	}
}

// begin checks b and reserves memory for it.
func (p *Packed) begin(b *Matrix, block *Block) {
	p.k, p.n, p.memory, p.pairs, p.then = 0, 0, p.memory[:0], p.pairs[:0], nil
	p.made, p.isa = p.Precision, chosen.of(p.Precision)
	if p.made >= Precisions {
		p.err = problem("B.Precision", uint8(p.made), "must be Float32, BF16Weights, BF16 or Int8")
		return
	}
	if p.err = b.check("B", b.Rows, b.Cols); p.err != nil {
		return
	}
	// A stride of 0 repeats elements. The packed form must not need more memory than b has.
	if high, n := bits.Mul64(uint64(b.Rows), uint64(b.Cols)); high != 0 || n > uint64(len(b.Data)) {
		p.err = problem("B.Data", len(b.Data), "has fewer elements than %d x %d", b.Rows, b.Cols)
		return
	}
	if p.made == Int8 && b.Rows > mostInt8 {
		p.err = problem("B.Rows", b.Rows, "must be at most %d with Int8", mostInt8)
		return
	}
	if p.err = p.checkScale(b.Rows); p.err != nil {
		return
	}
	p.k, p.n = b.Rows, b.Cols
	words := p.words()
	x, then := block.take(words)
	p.then = then
	switch {
	case words == 0:
	case x != nil && p.made == Float32:
		p.memory = x
	case x != nil:
		p.pairs = unsafe.Slice((*uint32)(unsafe.Pointer(&x[0])), words)
	case p.made == Float32:
		p.memory = aligned(p.memory, words)
	default:
		p.pairs = aligned(p.pairs, words)
	}
}

// words returns the size of packed memory.
func (p *Packed) words() int { return p.depth() * p.cut().vectors * p.isa.lanes }

func (p *Packed) cut() panels { return p.isa.panelsOf(p.n) }

// depth returns the number of rows of words in a panel.
func (p *Packed) depth() int {
	switch p.made {
	case Float32:
		return p.k
	case Int8:
		return headRows + p.isa.quads(p.k)
	}
	return p.isa.pairsOf(p.k)
}

// at returns the index in packed memory of a row of a panel. from is the number of the row, and col
// is the panel's first column.
func (p *Packed) at(col, from, width int) int {
	if p.made != Float32 {
		from /= 2
	}
	return p.depth()*col + from*width
}

// empty reports whether there is nothing to pack.
func (p *Packed) empty() bool { return len(p.memory)+len(p.pairs) == 0 }

// ahead returns the address of packed word i. If i is beyond the last word, the address is in the
// rest of the block. If the block ends before i, ahead returns the address of the last word.
func (p *Packed) ahead(i int) *byte {
	if next := i - len(p.memory) - len(p.pairs); next >= 0 && next < len(p.then) {
		return (*byte)(unsafe.Pointer(&p.then[next]))
	}
	if p.made == Float32 {
		return (*byte)(unsafe.Pointer(&p.memory[min(i, len(p.memory)-1)]))
	}
	return (*byte)(unsafe.Pointer(&p.pairs[min(i, len(p.pairs)-1)]))
}

// items returns the number of work items that pack b. An item is a group of rows if rows are
// contiguous, else a panel. With Int8, an item is always a panel, because columns have scales.
func (p *Packed) items(b *Matrix) int64 {
	switch {
	case p.empty():
		return 0
	case b.ColStride == 1 && p.made != Int8:
		return int64((p.k + packRows - 1) / packRows)
	}
	return int64(p.cut().count())
}

func (p *Packed) pack(b *Matrix, item int) {
	cut, from, to := p.cut(), 0, p.k
	first, last := item, item+1
	if b.ColStride == 1 && p.made != Int8 {
		from, first, last = item*packRows, 0, cut.count()
		to = min(from+packRows, p.k)
	}
	for i := first; i < last; i++ {
		col, width := cut.at(i)
		switch p.made {
		case Int8:
			p.packInt8(b, col, width)
			continue
		case BF16Weights, BF16:
			p.packPairs(b, col, width, from, to)
			continue
		}
		rows := Matrix{b.Data[from*b.RowStride:], to - from, b.Cols, b.RowStride, b.ColStride}
		packPanel(p.memory[p.k*col+from*width:], rows, col, width)
	}
}

// aligned returns n words that begin at a cache line. It reuses x if x is large enough.
func aligned[T float32 | uint32](x []T, n int) []T {
	const line = 64
	if cap(x) >= n {
		return x[:n]
	}
	x = make([]T, n+line/4)
	advise(unsafe.Pointer(&x[0]), 4*len(x))
	skip := int(-uintptr(unsafe.Pointer(&x[0])) % line / 4)
	return x[skip:][:n]
}

// packPanel packs a panel from column col on.
func packPanel(dst []float32, b Matrix, col, width int) {
	cols := min(width, b.Cols-col)
	if cols < width {
		clear(dst[:b.Rows*width])
	}
	switch {
	case b.ColStride == 1:
		for k := range b.Rows {
			copy(dst[k*width:][:cols], b.Data[k*b.RowStride+col:])
		}
	case b.RowStride == 1 && chosen.transpose != nil:
		packColumns(dst, b, col, cols, width)
	default:
		packElements(dst, b, 0, col, cols, width)
	}
}

// packColumns packs columns whose elements are contiguous. It packs whole blocks with vector
// instructions, then the rest element by element.
func packColumns(dst []float32, b Matrix, col, cols, width int) {
	n := chosen.lanes
	rows, whole := b.Rows/n*n, cols/n*n
	if rows > 0 { // else b has no element whose address transpose could get
		for c := 0; c < whole; c += n {
			chosen.transpose(&dst[c], width, n*width, &b.Data[(col+c)*b.ColStride], b.ColStride, n, &ones[0], rows/n)
		}
	}
	packElements(dst[rows*width:], b, rows, col, whole, width)
	packElements(dst[min(whole, len(dst)):], b, 0, col+whole, cols-whole, width)
}

// ones are the factors that transpose applies to columns.
var ones = func() (x [mostLanes]float32) {
	for i := range x {
		x[i] = 1
	}
	return x
}()

// packElements packs cols columns from row on, one element at a time.
func packElements(dst []float32, b Matrix, row, col, cols, width int) {
	for c := range cols {
		for k := row; k < b.Rows; k++ {
			dst[(k-row)*width+c] = b.Data[k*b.RowStride+(col+c)*b.ColStride]
		}
	}
}

// panels splits N columns into panels. With AMX and NEON, a panel has two vectors, and the last
// panel may have one. With other instruction sets, a panel has three vectors, and the last one or
// two panels may have two. There, a panel of one vector would take as long as a panel of two.
type panels struct {
	vectors int // vectors of all panels
	size    int // vectors of a wide panel
	wide    int // number of wide panels
	lanes   int
}

func (u *isa) panelsOf(n int) panels {
	v, wide := (n+u.lanes-1)/u.lanes, 0
	if narrow := (3 - v%3) % 3; u.wide == 3 {
		wide = max(0, (v-2*narrow)/3)
	} else {
		wide = v / u.wide
	}
	return panels{v, u.wide, wide, u.lanes}
}

func (p panels) count() int { return p.wide + (p.vectors-p.size*p.wide+1)/2 }

// at returns the first column of panel i and its width, a multiple of lanes.
func (p panels) at(i int) (col, width int) {
	first, size := p.size*min(i, p.wide)+2*max(0, i-p.wide), p.size
	if i >= p.wide {
		size = min(2, p.vectors-first)
	}
	return first * p.lanes, size * p.lanes
}

// equalParts splits n into equal parts. No part is longer than the argument most. equalParts
// returns the length of a part, rounded up to a multiple of unit.
func equalParts(n, most, unit int) int {
	parts := max(1, (n+most-1)/most)
	length := (n + parts - 1) / parts
	return (length + unit - 1) / unit * unit
}
