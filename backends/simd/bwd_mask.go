//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// What a mask hides has the weight 0 in P and dS. That is no shield against NaN and
// infinities in the other operand of a product. So where a mask is given and an operand has
// any, they are taken for 0 there and added apart, for those who see them.

// A rowMask hides keys from the rows of a tile.
type rowMask struct {
	isa  *laneISA
	t    *flashkit.Tensor // nil without a mask
	bits []uint32         // [rows], scratch
}

func (isa *laneISA) newRowMask(j *job, ws *pool.Arena) rowMask {
	if !j.p.Score.Mask {
		return rowMask{}
	}
	return rowMask{isa, &j.args.Mask, takeWords(ws, j.rows)}
}

// ofKeys reports whether a mask hides a key from all rows or from none.
func ofKeys(t *flashkit.Tensor) bool { return rowStep(t) == 0 }

// hide clears the bits of the keys that are hidden from the rows from a given one on, in
// a panel of keys from k on. It reports whether any bit is left.
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

// load sets the bits of n rows for the keys from k on, of which a panel at the end may
// have fewer than there are lanes.
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
	beyond := max(0, k+lanes-width) // begin so many keys before k
	m.isa.maskBits(&m.bits[0], &mask[at-beyond], rowStep(m.t), n)
	for r := 0; beyond > 0 && r < n; r++ {
		m.bits[r] >>= beyond
	}
}

// sees reports whether a row of the sequence sees a key.
func (j *job) sees(s *seqTile, h, row, key int) bool {
	from, to := s.Keys(row)
	t := &j.args.Mask
	return from <= key && key < to && (!j.p.Score.Mask || t.Bools()[t.Repeated(s.b, h, row)+key])
}

// hides reports whether a mask hides the keys [from, to) from all rows of a head. What it
// hides adds nothing to dQ, not even 0, which would make 0 of -0: so that a block that is
// skipped leaves the bits that a larger one does, of which it is a part.
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

// skips reports whether a head has nothing to do in the block of keys from a given one on,
// as it is hidden from all its rows, begins no run, and has no dBias to write.
func (j *job) skips(s *seqTile, h, from int) bool {
	return j.hides(s, h, from, from+j.keys) && !j.beginsRun(from) && j.biasKind() == noBias
}

// predecessorOf is predecessor of a head, which skips blocks.
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

// isFinite reports whether x is neither NaN nor infinite.
func isFinite(x float32) bool { return math.Abs(float64(x)) <= math.MaxFloat32 }

// tameRows is rows with 0 in place of what is not finite, in dst.
func (isa *laneISA) tameRows(dst []float32, t *flashkit.Tensor, b, h, r, n int) (rows []float32, step int) {
	step = pad(t.Shape()[3])
	isa.loadRows(dst, step, t, b, h, r, n)
	for i, x := range dst[:n*step] {
		if !isFinite(x) {
			dst[i] = 0
		}
	}
	return dst, step
}

// eachWild calls f for what is not finite in n rows of t. row has place for one.
func (isa *laneISA) eachWild(row []float32, t *flashkit.Tensor, b, h, from, n int, f func(r, c int, y float32)) {
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

// shield sets the rows of a tile for dK and dV, and how many rows or keys a product takes
// at the edges of the band.
func (isa *laneISA) shield(j *job, x *keyBlock, y *rowTile) {
	y.tame, y.group = y.queryRows, edgeGroup
	switch {
	case !j.p.Score.Mask:
		if y.wild[0] != 0 || x.wild {
			y.group = 1
		}
	case y.wild[0] != 0:
		f, n := j.args, y.to-y.from
		y.tamed = true
		y.tame.q, y.tame.qStep = isa.tameRows(x.tameQ, &f.Q, x.QBatch, y.h, x.Q0+y.from, n)
		y.tame.do, y.tame.doStep = isa.tameRows(x.tameDO, &f.DO, x.QBatch, y.h, x.Q0+y.from, n)
	}
}

// addWildKeys adds to dV and dK of the keys of a panel, from k on, what was taken for 0 in
// the rows [lo, hi) of the tile.
func (isa *laneISA) addWildKeys(j *job, x *keyBlock, y *rowTile, k, lo, hi int) {
	if !y.tamed {
		return
	}
	f, at, dim, vdim, step := j.args, k-x.from, pad(j.p.Dim), pad(j.p.VDim), dsStep(&j.plan)
	each := func(r int, add func(i int)) {
		for left := x.masks[lo+r]; left != 0; left &= left - 1 {
			add(bits.TrailingZeros32(left))
		}
	}
	isa.eachWild(x.row, &f.DO, x.QBatch, y.h, x.Q0+y.from+lo, hi-lo, func(r, c int, v float32) {
		each(r, func(i int) { x.dv[(at+i)*vdim+c] += x.s[(lo+r)*isa.lanes+i] * v })
	})
	isa.eachWild(x.row, &f.Q, x.QBatch, y.h, x.Q0+y.from+lo, hi-lo, func(r, c int, v float32) {
		each(r, func(i int) { x.dk[(at+i)*dim+c] += x.ds[(lo+r)*step+at+i] * v })
	})
}

// addWildRows adds to dQ of the tile what was taken for 0 in the keys of the block.
func (isa *laneISA) addWildRows(j *job, x *keyBlock, y *rowTile, dq []float32, step int) {
	if !x.tamed {
		return
	}
	isa.eachWild(x.row, &j.args.K, x.KVBatch, x.g, x.K0+x.from, x.to-x.from, func(key, c int, v float32) {
		for r := range y.to - y.from {
			if j.sees(&x.seqTile, y.h, y.from+r, x.from+key) {
				dq[r*step+c] += x.ds[r*dsStep(&j.plan)+key] * v
			}
		}
	})
}
