//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// convertRoutines load rows as float32, transpose rows into lanes, and store rows.
type convertRoutines struct {
	lanes   int // query rows of a tile
	block   int // rows and columns of a block of transpose
	convert int // fewest elements that widen and narrow accept

	transpose             func(dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int)
	widenF16, widenBF16   func(dst *float32, src *uint16, n int)
	narrowF16, narrowBF16 func(dst *uint16, src *float32, n int)
	dequantize            func(dst *float32, src *int8, scale float32, n int) // may be nil
}

// toLanes sets dst, [padded][lanes], to the transpose of the slice rows, [lanes][padded]. Rows of
// the slice rows begin step elements apart.
func (isa *convertRoutines) toLanes(dst, rows []float32, step, padded int) {
	for i := 0; i < isa.lanes; i += isa.block {
		isa.transpose(&dst[i], isa.lanes, isa.block*isa.lanes, &rows[i*step], step, isa.block, &ones[0], padded/isa.block)
	}
}

// fromLanes sets the slice rows, [lanes][padded], to the transpose of src, [padded][lanes]. Rows of
// the slice rows begin step elements apart. fromLanes multiplies row i by by[i].
func (isa *convertRoutines) fromLanes(rows []float32, step int, src []float32, padded int, by []float32) {
	for i := 0; i < isa.lanes; i += isa.block {
		isa.transpose(&rows[i*step], step, isa.block, &src[i], isa.lanes, isa.block*isa.lanes, &by[i], padded/isa.block)
	}
}

// transposed sets dst, [padded dim][lanes], to the transpose of n rows of t. Lanes from n on are 0.
// It returns the rows before the transposition, as wholeRows does.
func (isa *convertRoutines) transposed(dst, buf []float32, t *flashkit.Tensor, b, h, from, n int) (rows []float32, step int) {
	rows, step = isa.wholeRows(buf, t, b, h, from, n)
	isa.toLanes(dst, rows, step, pad(t.Shape()[3]))
	return rows, step
}

// panel does the work of transposed, but rows of dst from the dim on are unspecified.
func (isa *convertRoutines) panel(dst, buf []float32, t *flashkit.Tensor, b, h, from, n int) {
	dim, at, step := t.Shape()[3], t.Offset(b, h, from), rowStep(t)
	if t.DType() == flashkit.Float32 && n == isa.lanes && at+(n-1)*step+pad(dim) <= len(t.Float32s()) {
		isa.panelOf(dst, t.Float32s()[at:], step, dim, n)
		return
	}
	isa.loadRows(buf, dim, t, b, h, from, n)
	isa.panelOf(dst, buf, dim, dim, n)
}

// panelOf does the work of panel for float32 rows that are step elements apart. If n is less than the
// number of lanes, it zeros the rows after them. It reads padded rows.
func (isa *convertRoutines) panelOf(dst, rows []float32, step, dim, n int) {
	if n < isa.lanes {
		clear(rows[n*step : isa.lanes*step])
	}
	isa.toLanes(dst, rows, step, ceilDiv(dim, isa.block)*isa.block)
}

// wholeRows returns n rows of t, each padded with zeros, and then rows of zeros up to the number of
// lanes. It copies the rows to buf unless the tensor already has this layout.
func (isa *convertRoutines) wholeRows(buf []float32, t *flashkit.Tensor, b, h, from, n int) (rows []float32, step int) {
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

// view does the work of the function view, with vector conversions.
func (isa *convertRoutines) view(t *flashkit.Tensor, b, h, r, n int, buf []float32) (rows []float32, step int) {
	if t.DType() == flashkit.Float32 {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	dim := t.Shape()[3]
	isa.loadRows(buf, dim, t, b, h, r, n)
	return buf, dim
}

// viewKeys does the work of view for n keys of a sequence from key k on. The keys may be in pages.
func (isa *convertRoutines) viewKeys(j *job, t *flashkit.Tensor, s *seqTile, k, n int, buf []float32) (rows []float32, step int) {
	if j.p.Int8Group != 0 {
		j.dequantizeKeys(t, &s.Seq, s.b, s.g, k, n, buf, isa.dequantizeRows)
		return buf, t.Shape()[3]
	}
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

// loadRows widens n rows of t to rows of step elements in dst, padded with 0.
func (isa *convertRoutines) loadRows(dst []float32, step int, t *flashkit.Tensor, b, h, r, n int) {
	isa.loadRun(dst, step, t, t.Offset(b, h, r), n)
}

// loadRun does the work of loadRows for n rows of t that begin at offset at.
func (isa *convertRoutines) loadRun(dst []float32, step int, t *flashkit.Tensor, at, n int) {
	isa.loadEvery(dst, step, step, t, at, rowStep(t), n)
}

// loadEvery does the work of loadRun for rows that are next elements apart. Rows of dst are padded to
// width elements and are step elements apart.
func (isa *convertRoutines) loadEvery(dst []float32, step, width int, t *flashkit.Tensor, at, next, n int) {
	dim := t.Shape()[3]
	if step == dim && next == dim {
		isa.load(dst[:n*dim], t, at)
		return
	}
	if t.DType() == flashkit.Float32 && n > 0 {
		rows := t.Float32s()[at:]
		for i := range n {
			row := dst[i*step:][:width]
			clear(row[copy(row, rows[i*next:][:dim]):])
		}
		return
	}
	for i := range n {
		row := dst[i*step:][:width]
		isa.load(row[:dim], t, at+i*next)
		clear(row[dim:])
	}
}

// storeRows stores n rows of src in t, narrowed to the type of t. Rows of src are step elements
// apart.
func (isa *convertRoutines) storeRows(t *flashkit.Tensor, b, h, r, n int, src []float32, step int) {
	isa.storeEvery(t, t.Offset(b, h, r), rowStep(t), n, src, step)
}

// storeEvery does the work of storeRows for rows of t that begin at offset at, next elements apart.
func (isa *convertRoutines) storeEvery(t *flashkit.Tensor, at, next, n int, src []float32, step int) {
	dim := t.Shape()[3]
	if step == dim && next == dim {
		isa.store(t, at, src[:n*dim])
		return
	}
	if n == 0 {
		return
	}
	if t.DType() == flashkit.Float32 {
		rows := t.Float32s()[at:]
		for i := range n {
			copy(rows[i*next:][:dim], src[i*step:])
		}
		return
	}
	for i := range n {
		isa.store(t, at+i*next, src[i*step:][:dim])
	}
}

// load does the work of the function load, with vector conversions.
func (isa *convertRoutines) load(dst []float32, t *flashkit.Tensor, from int) {
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

// store does the work of the function store, with vector conversions.
func (isa *convertRoutines) store(t *flashkit.Tensor, to int, src []float32) {
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

// loadGroup loads rows [row, row+n) of `group` heads from head h on, in the order of the decode
// kernels: row by row, and head by head.
func (isa *convertRoutines) loadGroup(dst []float32, step int, t *flashkit.Tensor, b, h, group, row, n int) {
	at, strides := t.Offset(b, h, row), t.Strides()
	if n >= group { // one loop per head
		for i := range group {
			isa.loadEvery(dst[i*step:], group*step, step, t, at+i*strides[1], strides[2], n)
		}
		return
	}
	for i := range n {
		isa.loadEvery(dst[i*group*step:], step, step, t, at+i*strides[2], strides[1], group)
	}
}

// storeGroup stores rows in the order of loadGroup.
func (isa *convertRoutines) storeGroup(t *flashkit.Tensor, b, h, group, row, n int, src []float32, step int) {
	at, strides := t.Offset(b, h, row), t.Strides()
	if n >= group { // one loop per head
		for i := range group {
			isa.storeEvery(t, at+i*strides[1], strides[2], n, src[i*step:], group*step)
		}
		return
	}
	for i := range n {
		isa.storeEvery(t, at+i*strides[2], strides[1], group, src[i*group*step:], step)
	}
}

// pad rounds a head dim up to a multiple of 16: to whole vectors and whole blocks of transpose in
// every instruction set.
func pad(dim int) int { return (dim + 15) &^ 15 }
