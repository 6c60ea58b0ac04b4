//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A laneISA is an instruction set for kernels that have query rows in the lanes
// of two vectors, or four. The routines are documented where they are declared.
//
// What a routine is given escapes, because it is called through a variable: it
// must be workspace or the caller's memory.
type laneISA struct {
	lanes   int  // query rows of a tile
	keys    int  // of a block of a forward pass
	block   int  // rows and columns that transpose takes
	convert int  // elements that widen and narrow take at least
	looks   bool // addValuesMasked looks at V, as it has no opmasks
	fwdPace pace
	bwdPace pace

	shortPace pace // of a forward pass by attendTile

	scores                func(s, k *float32, step int, q *float32, dim, keys int, top, ahead *float32)
	maskScores            func(s *float32, masks *uint32, keys int, top *float32)
	weights               func(s *float32, keys int, m, top, l, alpha *float32, scale float32)
	totals                func(lse, by, m, l *float32, scale float32)
	addValues             func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32)
	addValuesMasked       func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32, masks *uint32)
	addSum                func(sum, x *float32, rows int, alpha *float32)
	transpose             func(dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int)
	dots                  func(sum, a, b *float32, dim int)
	gradients             func(s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, scale float32)
	addProduct            productFunc
	addProductT           productFunc
	addProductMasked      maskedProductFunc // nil: it takes whole vectors of columns, and rows must be padded
	addProductTMasked     maskedProductFunc
	widenF16, widenBF16   func(dst *float32, src *uint16, n int)
	narrowF16, narrowBF16 func(dst *uint16, src *float32, n int)
	setPanel, addPanelTo  func(dst *float32, step int, src *float32, rows int)

	adjust      func(s *float32, step, rows int, top, uncap *float32, scale, softcap float32, bias *float32, biasStep int, lanes *float32, slope, at float32)
	maskBits    func(masks *uint32, mask *bool, step, rows int)
	fetch       func(from *byte, step, bytes, rows int)
	dropWeights func(s *float32, keys, key int, rows *uint32, head, batch uint32, seed uint64, below uint32)
	keepKeys    func(kept *uint32, rows, row, key int, head, batch uint32, seed uint64, below uint32)
	attendTile  attendTileFunc // nil: there is none
	gradientsOf func(s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, unit, scale float32, kept *uint32, keep float32, uncap, db *float32)
}

type (
	attendTileFunc    func(o *float32, oStep int, totals, q *float32, qStep int, k *float32, kStep int, v *float32, vStep int, queries, s *float32, rows, dim, vdim, keys int, ahead *float32, scale, unit float32)
	productFunc       func(c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int)
	maskedProductFunc func(c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int, columns uint32)
)

const (
	tileStep  = 32  // rows or columns that a product of tiles takes
	tileBlock = 256 // keys of a block of a forward pass with tiles: no other block has more
)

// upToTiles rounds up to whole steps.
func upToTiles(n int) int { return (n + tileStep - 1) &^ (tileStep - 1) }

// pad rounds a head dim up to whole vectors and whole blocks.
func pad(dim int) int { return (dim + 15) &^ 15 }

// laneMask returns the bits from up to but not including to, as far as they lie
// in [0, n).
func laneMask(from, to, n int) uint32 {
	from, to = max(from, 0), min(to, n)
	if from >= to {
		return 0
	}
	return uint32(1<<to - 1<<from)
}

// takeWords returns workspace as n words.
func takeWords(ws *arena, n int) []uint32 { return asWords(ws.take(n)) }

// asWords returns the memory of floats as words.
func asWords(x []float32) []uint32 { return unsafe.Slice((*uint32)(unsafe.Pointer(&x[0])), len(x)) }

// toLanes sets dst, [padded][lanes], to the transpose of lanes rows of padded
// elements.
func (isa *laneISA) toLanes(dst, rows []float32, step, padded int) {
	for i := 0; i < isa.lanes; i += isa.block {
		isa.transpose(&dst[i], isa.lanes, isa.block*isa.lanes, &rows[i*step], step, isa.block, &ones[0], padded/isa.block)
	}
}

// fromLanes sets lanes rows of padded elements to the transpose of src,
// [padded][lanes], row i times by[i].
func (isa *laneISA) fromLanes(rows []float32, step int, src []float32, padded int, by []float32) {
	for i := 0; i < isa.lanes; i += isa.block {
		isa.transpose(&rows[i*step], step, isa.block, &src[i], isa.lanes, isa.block*isa.lanes, &by[i], padded/isa.block)
	}
}

// ones are factors that change nothing, as many as any instruction set has lanes.
var ones = [32]float32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}

// transposed sets dst, [padded dim][lanes], to n rows of t, transposed, and 0 in
// the lanes beyond them. It returns the rows, which are in buf if they cannot be
// read where they lie.
func (isa *laneISA) transposed(dst, buf []float32, t *flashkit.Tensor, b, h, from, n int) (rows []float32, step int) {
	rows, step = isa.wholeRows(buf, t, b, h, from, n)
	isa.toLanes(dst, rows, step, pad(t.Shape()[3]))
	return rows, step
}

// view is view with vector conversions.
func (isa *laneISA) view(t *flashkit.Tensor, b, h, r, n int, buf []float32) (rows []float32, step int) {
	if t.DType() == flashkit.Float32 {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	dim := t.Shape()[3]
	isa.loadRows(buf, dim, t, b, h, r, n)
	return buf, dim
}

// viewKeys is view of keys of a sequence, which may lie in pages.
func (isa *laneISA) viewKeys(j *job, t *flashkit.Tensor, s *seqTile, k, n int, buf []float32) (rows []float32, step int) {
	if j.p.Page == 0 {
		return isa.view(t, s.KVBatch, s.g, s.K0+k, n, buf)
	}
	dim := t.Shape()[3]
	for i := 0; i < n; {
		at, run := j.call.KeyRun(t, s.b, s.g, k+i)
		if run = min(run, n-i); run == n && t.DType() == flashkit.Float32 {
			return t.Float32s()[at:], rowStep(t)
		}
		isa.loadRun(buf[i*dim:], dim, t, at, run)
		i += run
	}
	return buf, dim
}

// loadRows widens n rows of t to rows of step elements, the last of which become 0.
func (isa *laneISA) loadRows(dst []float32, step int, t *flashkit.Tensor, b, h, r, n int) {
	isa.loadRun(dst, step, t, t.Offset(b, h, r), n)
}

// loadRun is loadRows from the given element on.
func (isa *laneISA) loadRun(dst []float32, step int, t *flashkit.Tensor, at, n int) {
	dim, next := t.Shape()[3], rowStep(t)
	if step == dim && next == dim {
		isa.load(dst[:n*dim], t, at)
		return
	}
	for i := range n {
		row := dst[i*step:][:step]
		isa.load(row[:dim], t, at+i*next)
		clear(row[dim:])
	}
}

// storeRows narrows n rows that lie step elements apart to rows of t.
func (isa *laneISA) storeRows(t *flashkit.Tensor, b, h, r, n int, src []float32, step int) {
	dim := t.Shape()[3]
	if step == dim && rowStep(t) == dim {
		isa.store(t, t.Offset(b, h, r), src[:n*dim])
		return
	}
	for i := range n {
		isa.store(t, t.Offset(b, h, r+i), src[i*step:][:dim])
	}
}

// load is load with vector conversions.
func (isa *laneISA) load(dst []float32, t *flashkit.Tensor, from int) {
	if t.DType() == flashkit.Float32 || len(dst) < isa.convert {
		load(dst, t, from)
		return
	}
	widen := isa.widenF16
	if t.DType() == flashkit.BFloat16 {
		widen = isa.widenBF16
	}
	widen(&dst[0], &t.Uint16s()[from:][:len(dst)][0], len(dst))
}

// store is store with vector conversions.
func (isa *laneISA) store(t *flashkit.Tensor, to int, src []float32) {
	if t.DType() == flashkit.Float32 || len(src) < isa.convert {
		store(t, to, src)
		return
	}
	narrow := isa.narrowF16
	if t.DType() == flashkit.BFloat16 {
		narrow = isa.narrowBF16
	}
	narrow(&t.Uint16s()[to:][:len(src)][0], &src[0], len(src))
}

// direct reports whether rows of t can take the place of padded float32 rows.
func (isa *laneISA) direct(t *flashkit.Tensor) bool {
	return isa.directRows(t.DType(), t.Shape()[3])
}

func (isa *laneISA) directRows(t flashkit.DType, dim int) bool {
	return t == flashkit.Float32 && (isa.addProductMasked != nil || dim == pad(dim))
}

// rows returns n rows of head h of t, from row r on, as float32. They are in buf
// if they cannot be used where they lie.
func (isa *laneISA) rows(t *flashkit.Tensor, b, h, r, n int, buf []float32) (rows []float32, step int) {
	if isa.direct(t) {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	step = pad(t.Shape()[3])
	isa.loadRows(buf, step, t, b, h, r, n)
	return buf, step
}

// wild reports whether x, [dim][lanes], may hold NaN or an infinity: whether the
// square of a lane is neither.
func (isa *laneISA) wild(x []float32, dim int, sums []float32) bool {
	isa.dots(&sums[0], &x[0], &x[0], dim)
	for _, sum := range sums {
		if !(sum <= math.MaxFloat32) {
			return true
		}
	}
	return false
}

// wholeRows returns n rows of t, and in the lanes beyond them rows of 0, with a padded dim.
// They are in buf if they cannot be read where they lie.
func (isa *laneISA) wholeRows(buf []float32, t *flashkit.Tensor, b, h, from, n int) (rows []float32, step int) {
	dim := t.Shape()[3]
	padded := pad(dim)
	if t.DType() == flashkit.Float32 && n == isa.lanes && dim == padded {
		return t.Float32s()[t.Offset(b, h, from):], rowStep(t)
	}
	rows = buf[:isa.lanes*padded]
	isa.loadRows(rows, padded, t, b, h, from, n)
	clear(rows[n*padded:])
	return rows, padded
}

// doubles returns workspace as float64, from the first place on where one may lie.
func doubles(x []float32) []float64 {
	if uintptr(unsafe.Pointer(&x[0]))%8 != 0 {
		x = x[1:]
	}
	return unsafe.Slice((*float64)(unsafe.Pointer(&x[0])), len(x)/2)
}
