package matmul

import (
	"math"
	"unsafe"
)

// Products in 8 bits. A vector of K numbers, a row of A or a column of B, becomes integers in
// [-127, 127] and one scale: the largest magnitude, divided by 127. An integer is x·127/largest,
// rounded to nearest, ties to even. A vector with NaN or infinity has the scale NaN, so its results
// are NaN. A vector whose scale is below 2^-126 has the scale 0.
//
// C is (sum·scale of the row)·scale of the column, where sum is the exact int32 sum of products. So
// all instruction sets compute the same integers.

const (
	// mostInt8 is the largest K. Sums of more products could leave the range of int32.
	mostInt8 = 1 << 17

	// headRows is the number of rows before the integers of a panel. The first row holds the
	// sum's first term for each column, as int32. The second row holds the columns' scales.
	headRows = 2

	levels = 127 // largest integer
)

type (
	extentFunc   = func(x *float32, n int) uint32
	scaleFunc    = func(dst, x, by *float32, n int) uint32
	quantizeFunc = func(dst *uint32, x *float32, n int, by float32)
	dotsFunc     = func(c *float32, cStep int, a *uint32, aRow int, scales *float32, b *uint32, k, rows, add int, bias *float32, sums *int32)
)

// vectorInt8 is the number of elements that extent and quantize process at a time.
const vectorInt8 = 16

// checkScale checks the factors of A's columns. Before rounding, column k of A is multiplied by
// Scale[k], and row k of B is divided by Scale[k]. Without rounding, C would not change. Factors that
// make the columns' magnitudes similar reduce the error, because all elements of a row share a scale.
//
// Source: Xiao, Lin, Seznec, Wu, Demouth, Han, SmoothQuant, 2022.
func (p *Packed) checkScale(k int) error {
	if p.Scale == nil || p.made != Int8 {
		return nil
	}
	if len(p.Scale) != k {
		return problem("B.Scale", len(p.Scale), "must have one factor for each of the %d rows of B", k)
	}
	for _, x := range p.Scale {
		if !(x >= leastFactor && x <= 1/leastFactor) {
			return problem("B.Scale", x, "must be from 2^-60 to 2^60")
		}
	}
	return nil
}

const leastFactor = 0x1p-60 // of a column of A

// scaleOf returns a vector's scale and the factor that converts its elements to integers. most has
// the bits of the largest magnitude.
func scaleOf(most uint32) (scale, by float32) {
	x := math.Float32frombits(most)
	switch scale = x / levels; {
	case most >= 0xff<<23: // infinity or NaN
		return float32(math.NaN()), 0
	case scale < 0x1p-126:
		return 0, 0
	}
	return scale, levels / x
}

// extent returns the bits of the largest magnitude. Bits of magnitudes are ordered as integers, and
// the bits of NaN are above the bits of infinity.
func extent(x []float32, most uint32) uint32 {
	for _, x := range x {
		most = max(most, math.Float32bits(x)&^(1<<31))
	}
	return most
}

// level returns x·by as an integer.
func level(x, by float32) int {
	if by == 0 {
		return 0
	}
	return int(math.RoundToEven(float64(float32(x * by))))
}

// quads returns the number of words that hold k integers of 8 bits, with their padding.
func (u *isa) quads(k int) int { return max(1, (k+u.depth-1)/u.depth) * u.depth / 4 }

// stepOf returns the number of words of a quantized row.
func (u *isa) stepOf(k int) int {
	if u.groupInt8 == 2 {
		return 2 * u.quads(k)
	}
	return u.quads(k)
}

// packInt8 packs a panel. isa.groupInt8 rows of a column are together.
func (p *Packed) packInt8(b *Matrix, col, width int) {
	panel := p.pairs[p.at(col, 0, width):][:p.depth()*width]
	clear(panel)
	bytes := unsafe.Slice((*int8)(unsafe.Pointer(&panel[headRows*width])), 4*(len(panel)-headRows*width))
	group := p.isa.groupInt8
	x := make([]float32, p.k)
	for c := range min(width, b.Cols-col) {
		for k := range x {
			if x[k] = b.Data[k*b.RowStride+(col+c)*b.ColStride]; p.Scale != nil {
				x[k] /= p.Scale[k]
			}
		}
		scale, by := scaleOf(extent(x, 0))
		sum := 0
		for k, x := range x {
			q := level(x, by)
			bytes[(k/group*width+c)*group+k%group] = int8(q)
			sum += q
		}
		if p.isa.offsetInt8 {
			panel[c] = uint32(int32(-offsetInt8 * sum))
		}
		panel[width+c] = math.Float32bits(scale)
	}
}

// offsetInt8 is the term that makes the integers of A unsigned, for an isa with offsetInt8.
const offsetInt8 = 128

// layoutInt8 sets the offsets in a worker's memory, as layout does. It returns the size of this
// memory in floats.
func (j *job) layoutInt8() int {
	const line = 16
	u, k := j.isa, j.args.B.k
	j.copied = j.sumsOf(1)
	j.rounded = j.copied
	if j.args.A.ColStride != 1 || j.args.B.Scale != nil {
		j.rounded += (j.rows*k + line - 1) / line * line
	}
	j.scales = j.rounded + j.rows*u.stepOf(k)
	j.widened = (j.scales + j.rows + line - 1) / line * line
	return j.widened + u.tile*min(j.cut.size, j.cut.vectors)*u.lanes
}

// blockInt8 does the work of block. A worker's memory keeps the integers of the rows for the
// worker's next item.
func (j *job) blockInt8(slot, row, first int) {
	work, last := j.work[slot], min(first+j.group, j.cut.count())
	p := part{row: row, rows: min(j.rows, j.args.C.Rows-row), n: j.args.B.k}
	if j.held[slot] != row {
		j.quantize(work, row, p.rows)
		j.held[slot] = row
	}
	for i := first; i < last; i++ {
		p.col, p.width = j.cut.at(i)
		p.sums = work[:p.rows*p.width]
		j.partInt8(&p, work)
	}
}

// quantize converts rows of A to integers and scales in a worker's memory.
func (j *job) quantize(work []float32, row, rows int) {
	a, k, step := j.args.A, j.args.B.k, j.isa.stepOf(j.args.B.k)
	ints := words(work[j.rounded:j.scales])
	if k == 0 {
		clear(ints)
		clear(work[j.scales:][:rows])
		return
	}
	a = Matrix{Data: a.Data[row*a.RowStride:], Rows: rows, Cols: k, RowStride: a.RowStride, ColStride: a.ColStride}
	if a.ColStride != 1 {
		a.copyTo(work[j.copied:])
	}
	for r := range rows {
		x, most := a.Data[r*a.RowStride:][:k], uint32(0)
		if by := j.args.B.Scale; by == nil {
			most = j.isa.extentOf(x)
		} else {
			scaled := work[j.copied:][r*k:][:k]
			most = j.isa.scaleRow(scaled, x, by)
			x = scaled
		}
		if !j.isa.tilesInt8 {
			work[j.scales+r] = j.isa.quantizeRow(ints[r*step:][:step], x, most)
			continue
		}
		at := r/tileRows*tileRows*step + r%tileRows*lineWords
		for from := 0; from < k; from += 4 * lineWords {
			work[j.scales+r] = j.isa.quantizeRow(ints[at:][:lineWords], x[from:min(from+4*lineWords, k)], most)
			at += tileRows * lineWords
		}
	}
}

// words returns the memory of x as integers.
func words(x []float32) []uint32 { return unsafe.Slice((*uint32)(unsafe.Pointer(&x[0])), len(x)) }

// extentOf returns the bits of the largest magnitude of a row.
func (u *isa) extentOf(x []float32) uint32 {
	n, most := 0, uint32(0)
	if u.extent != nil && len(x) >= vectorInt8 {
		n = len(x) / vectorInt8 * vectorInt8
		most = u.extent(&x[0], n)
	}
	return extent(x[n:], most)
}

// scaleRow sets dst to the products of a row and the factors of its columns. It returns the bits of
// the largest magnitude of dst.
func (u *isa) scaleRow(dst, x, by []float32) uint32 {
	n, most := 0, uint32(0)
	if u.scale != nil && len(x) >= vectorInt8 {
		n = len(x) / vectorInt8 * vectorInt8
		most = u.scale(&dst[0], &x[0], &by[0], n)
	}
	for i := n; i < len(x); i++ {
		dst[i] = x[i] * by[i]
	}
	return extent(dst[n:], most)
}

// quantizeRow converts a row to integers and returns its scale. most has the bits of the largest
// magnitude.
func (u *isa) quantizeRow(dst []uint32, x []float32, most uint32) float32 {
	n := 0
	if u.quantize != nil {
		n = len(x) / vectorInt8 * vectorInt8
	}
	scale, by := scaleOf(most)
	if n > 0 {
		u.quantize(&dst[0], &x[0], n, by)
	}
	if n == len(x) {
		return scale
	}
	bits, mask, count, offset := 8, uint32(0xff), 4, 0
	if u.groupInt8 == 2 {
		bits, mask, count = 16, 0xffff, 2
	}
	if u.offsetInt8 {
		offset = offsetInt8
	}
	clear(dst[n/count:])
	for i := n; i < len(x); i++ {
		dst[i/count] |= uint32(level(x[i], by)+offset) & mask << (i % count * bits)
	}
	return scale
}

// partInt8 computes a part of C.
func (j *job) partInt8(p *part, work []float32) {
	a, u := &j.args, j.isa
	step, b := u.stepOf(p.n), a.B.pairs[a.B.at(p.col, 0, p.width):]
	c, cStep, add, bias := &p.sums[0], p.width, 0, (*float32)(nil)
	direct := u.dots != nil && j.plain && p.col+p.width <= a.B.n
	if direct {
		c, cStep, add = a.C.at(p.row, p.col), a.C.RowStride, j.adds
		if a.Bias != nil {
			bias = &a.Bias[p.col]
		}
	}
	ints, scales := words(work[j.rounded:j.scales]), work[j.scales:][:p.rows]
	if u.dots == nil {
		dotsPortable(p.sums, ints, scales, b[:a.B.depth()*p.width], p.width)
	} else {
		u.dots(c, cStep, &ints[0], step, &scales[0], &b[0], step, p.rows, add, bias, (*int32)(unsafe.Pointer(&work[j.widened])))
	}
	if !direct {
		j.finish(p)
	}
}

// dotsPortable sets sums, [rows][width], to the products of A's rows and a panel.
func dotsPortable(sums []float32, a []uint32, scales []float32, panel []uint32, width int) {
	columns := panel[width : headRows*width]
	panel = panel[headRows*width:]
	step := len(panel) / width
	for r, scale := range scales {
		for c := range width {
			sum := int32(0)
			for k, x := range a[r*step:][:step] {
				y := panel[k*width+c]
				sum += int32(int8(x))*int32(int8(y)) + int32(int8(x>>8))*int32(int8(y>>8)) + int32(int8(x>>16))*int32(int8(y>>16)) + int32(int8(x>>24))*int32(int8(y>>24))
			}
			sums[r*width+c] = float32(float32(sum)*scale) * math.Float32frombits(columns[c])
		}
	}
}
