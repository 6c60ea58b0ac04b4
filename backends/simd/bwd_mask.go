//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// Where the mask hides a key from a row, P and dS are 0, but 0 times NaN or infinity is NaN. So in
// a call with a mask, products of P and dS use 0 in place of NaN and infinite elements of Q, K and
// dO. The products of these elements are added separately, and only for visible pairs of a row and
// a key.

type rowMask struct {
	isa    *laneRoutines
	t      *flashkit.Tensor                 // nil without a mask
	bits   []uint32                         // [rows], scratch
	ranges bool                             // the call has ranges of keys
	bounds rangeBounds                      // of the tile's rows
	groups [bwdRows / edgeGroup]rangeBounds // of groups of the tile's rows
}

func (isa *laneRoutines) newRowMask(j *job, ws *pool.Arena) rowMask {
	x := rowMask{isa: isa, ranges: j.p.Score.Ranges != 0}
	if j.p.Score.Mask {
		x.t, x.bits = &j.args.Mask, takeWords(ws, j.rows)
	}
	return x
}

// ofKeys reports whether all rows share the mask.
func ofKeys(t *flashkit.Tensor) bool { return rowStep(t) == 0 }

// hide clears the bits of keys that the mask hides. Bit i of masks[r] is the bit of key k+i in row
// row+r. hide reports whether any bit is left.
func (m *rowMask) hide(masks []uint32, b, h, row, k int) bool {
	if m.t == nil {
		return true
	}
	left := uint32(0)
	if ofKeys(m.t) {
		m.load(b, h, row, k, 1)
		for i := range masks {
			masks[i] &= m.bits[0]
			left |= masks[i]
		}
		return left != 0
	}
	m.load(b, h, row, k, len(masks))
	for i, seen := range m.bits[:len(masks)] {
		masks[i] &= seen
		left |= masks[i]
	}
	return left != 0
}

// load sets m.bits[r] to the mask's bits of row row+r, for n rows. Bit i is the bit of key k+i, for
// the keys of a panel. The bits of keys after the end of the mask are 0.
func (m *rowMask) load(b, h, row, k, n int) {
	lanes, width := m.isa.lanes, m.t.Shape()[3]
	at, mask := m.t.Repeated(b, h, row)+k, m.t.Bools()
	if width < lanes {
		for r := range n {
			m.bits[r] = 0
			for i, on := range mask[at+r*rowStep(m.t):][:width-k] {
				if on {
					m.bits[r] |= 1 << i
				}
			}
		}
		return
	}
	beyond := max(0, k+lanes-width) // whole vectors from key k on would read past the row, so begin this number of keys earlier
	m.isa.maskBits(&m.bits[0], &mask[at-beyond], rowStep(m.t), n)
	for r := 0; beyond > 0 && r < n; r++ {
		m.bits[r] >>= beyond
	}
}

// sees reports whether a row of the sequence sees a key.
func (j *job) sees(s *seqTile, h, row, key int) bool {
	from, to := s.Keys(row)
	t := &j.args.Mask
	return from <= key && key < to && (!j.p.Score.Mask || t.Bools()[t.Repeated(s.b, h, row)+key]) && j.inRanges(s.b, h, row, key)
}

// hides reports whether all rows share the mask, and the mask hides the keys [from, to) from a
// head. Such keys must add nothing to dQ, not even 0, because -0 + 0 is 0. The bits are then the
// same whether a block of these keys is skipped, or a larger block contains these keys.
func (j *job) hides(s *seqTile, h, from, to int) bool {
	if !j.p.Score.Mask || !ofKeys(&j.args.Mask) || s.N == 0 {
		return false
	}
	t := &j.args.Mask
	at := t.Repeated(s.b, h, 0)
	for _, on := range t.Bools()[at+from : at+min(to, s.M)] {
		if on {
			return false
		}
	}
	return true
}

// skips reports whether head h can skip the block whose first key is from. It can if the mask hides
// the block's keys from all rows of the head, and beginsRun is false, and no dBias is requested.
func (j *job) skips(s *seqTile, h, from int) bool {
	return j.hides(s, h, from, from+j.keys) && !j.beginsRun(from) && j.biasKind() == noBias
}

// predecessorOf returns the item of the last block before x, in the chain of x, that head h does not
// skip. It returns a negative number if there is none.
func (j *job) predecessorOf(x *keyRange, item, h int) int {
	y := *x
	for {
		if item = j.predecessor(&y, item); item < 0 {
			return item
		}
		_, _, block := j.byKey.Find(item)
		if y.from = block * j.keys; !j.skips(&y.seqTile, h, y.from) {
			return item
		}
	}
}

func isFinite(x float32) bool { return math.Abs(float64(x)) <= math.MaxFloat32 }

// finiteRows loads n rows of head h of t, from row r on, into dst. It stores 0 for NaN and infinity.
func (isa *laneRoutines) finiteRows(dst []float32, t *flashkit.Tensor, b, h, r, n int) (rows []float32, step int) {
	step = pad(t.Shape()[3])
	isa.loadRows(dst, step, t, b, h, r, n)
	for i, x := range dst[:n*step] {
		if !isFinite(x) {
			dst[i] = 0
		}
	}
	return dst, step
}

// eachNonFinite calls f for each NaN or infinite element of rows [from, from+n) of t. f gets the
// element's row minus from, its column, and its value. The slice row is scratch for one row.
func (isa *laneRoutines) eachNonFinite(row []float32, t *flashkit.Tensor, b, h, from, n int, f func(r, c int, y float32)) {
	row = row[:t.Shape()[3]]
	for r := range n {
		isa.load(row, t, t.Offset(b, h, from+r))
		for c, y := range row {
			if !isFinite(y) {
				f(r, c, y)
			}
		}
	}
}

// setOperands sets y.finite to the operands of the products for dK and dV. It sets y.group to the
// number of rows or keys of a product at the edges of the band.
func (isa *laneRoutines) setOperands(j *job, x *keyBlock, y *rowTile) {
	y.finite, y.group = y.queryRows, edgeGroup
	switch {
	case !j.hidesByRow():
		if y.nonFinite[0] != 0 || x.nonFinite {
			y.group = 1
		}
	case y.nonFinite[0] != 0:
		f, n := j.args, y.to-y.from
		y.cleared = true
		y.finite.q, y.finite.qStep = isa.finiteRows(x.finiteQ, &f.Q, x.QBatch, y.h, x.Q0+y.from, n)
		y.finite.do, y.finite.doStep = isa.finiteRows(x.finiteDO, &f.DO, x.QBatch, y.h, x.Q0+y.from, n)
	}
}

// addNonFiniteKeys adds to dV and dK the products of P and dS with NaN and infinite elements of dO
// and Q. It processes rows [lo, hi) of the tile, and the panel that begins at key k.
func (isa *laneRoutines) addNonFiniteKeys(j *job, x *keyBlock, y *rowTile, k, lo, hi int) {
	if !y.cleared {
		return
	}
	f, at, dim, vdim, step := j.args, k-x.from, isa.width(j.p.Dim), isa.width(j.p.VDim), dsStep(&j.plan)
	each := func(r int, add func(i int)) {
		for left := x.masks[lo+r]; left != 0; left &= left - 1 {
			add(bits.TrailingZeros32(left))
		}
	}
	isa.eachNonFinite(x.row, &f.DO, x.QBatch, y.h, x.Q0+y.from+lo, hi-lo, func(r, c int, v float32) {
		each(r, func(i int) { x.dv[(at+i)*vdim+c] += x.s[(lo+r)*isa.lanes+i] * v })
	})
	isa.eachNonFinite(x.row, &f.Q, x.QBatch, y.h, x.Q0+y.from+lo, hi-lo, func(r, c int, v float32) {
		each(r, func(i int) { x.dk[(at+i)*dim+c] += x.ds[(lo+r)*step+at+i] * v })
	})
}

// addNonFiniteRows adds to dQ of the tile the products of dS with NaN and infinite elements of K of
// the block.
func (isa *laneRoutines) addNonFiniteRows(j *job, x *keyBlock, y *rowTile, dq []float32, step int) {
	if !x.cleared {
		return
	}
	isa.eachNonFinite(x.row, &j.args.K, x.KVBatch, x.g, x.K0+x.from, x.to-x.from, func(key, c int, v float32) {
		for r := range y.to - y.from {
			if j.sees(&x.seqTile, y.h, y.from+r, x.from+key) {
				dq[r*step+c] += x.ds[r*dsStep(&j.plan)+key] * v
			}
		}
	})
}
