//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// seen sets the masks of the tile's rows for the panel that begins at key k. It returns the rows
// [lo, hi) that see some of these keys, rounded to whole groups of edgeGroup rows for dQ.
func (isa *laneRoutines) seen(j *job, x *keyBlock, y *rowTile, k, keys int) (lo, hi int) {
	lo, _ = x.Queries(k)
	_, hi = x.Queries(k + keys - 1)
	lo, hi = max(lo, y.from)-y.from, min(hi, y.to)-y.from
	if lo >= hi {
		return lo, hi
	}
	lo, hi = lo/edgeGroup*edgeGroup, min(ceilDiv(hi, edgeGroup)*edgeGroup, y.to-y.from)
	setKeyMasks(&x.Seq, x.masks[lo:hi], y.from+lo, k, keys, isa.lanes, y.inBand)
	some := x.mask.hide(x.masks[lo:hi], x.b, y.h, y.from+lo, k)
	if some && x.mask.ranges && !x.mask.bounds.seesAll(k, k+keys) {
		return isa.hideRanges(j, x, y, k, keys, lo, hi)
	}
	if some {
		return lo, hi
	}
	step, at := dsStep(&j.plan), k-x.from
	for r := lo; r < hi; r++ {
		clear(x.ds[r*step+at:][:isa.lanes])
	}
	return 0, 0
}

// setKeyMasks sets masks[i] to a mask of the keys that query row row+i sees. Bit c of the mask
// stands for key k+c, for c below keys. If whole is true, every row sees all these keys.
func setKeyMasks(s *flashkit.Seq, masks []uint32, row, k, keys, lanes int, whole bool) {
	if all := laneMask(0, lanes, keys); whole {
		for i := range masks {
			masks[i] = all
		}
		return
	}
	for i := range masks {
		from, to := s.Keys(row + i)
		masks[i] = laneMask(from-k, to-k, keys)
	}
}

// addKeys adds Pᵀ dO and dSᵀ Q of rows [first, last) of the tile to dV and dK of the panel that begins
// at key k. It processes group keys at a time.
func (isa *laneRoutines) addKeys(j *job, x *keyBlock, y *rowTile, k, keys, group, first, last int) {
	p, lanes, at := &j.p, isa.lanes, k-x.from
	for c := 0; c < keys; c += group {
		rows := min(group, keys-c)
		lo, _ := x.Queries(k + c)
		_, hi := x.Queries(k + c + rows - 1)
		if lo, hi = max(lo-y.from, first), min(hi-y.from, last); lo < hi {
			isa.add(isa.addProductT, isa.addProductTMasked, x.dv[(at+c)*isa.width(p.VDim):], isa.width(p.VDim),
				x.s[lo*lanes+c:], lanes, y.finite.do[lo*y.finite.doStep:], y.finite.doStep, rows, hi-lo, p.VDim)
			isa.add(isa.addProductT, isa.addProductTMasked, x.dk[(at+c)*isa.width(p.Dim):], isa.width(p.Dim),
				x.ds[lo*dsStep(&j.plan)+at+c:], dsStep(&j.plan), y.finite.q[lo*y.finite.qStep:], y.finite.qStep, rows, hi-lo, p.Dim)
		}
	}
}

// addRows adds dS K over the keys [from, to) to dQ of the tile. It takes group rows and up to
// minBlockK keys at a time.
func (isa *laneRoutines) addRows(j *job, x *keyBlock, y *rowTile, dq []float32, step, from, to, group int) {
	p, byRanges := &j.p, x.mask.ranges && !y.whole
	for r, rows := y.from, 0; r < y.to; r += rows {
		rows = min(group, y.to-r)
		lo, _ := x.Keys(r)
		_, hi := x.Keys(r + rows - 1)
		lo, hi = max(lo, from), min(hi, to)
		if byRanges {
			rows, lo, hi = x.mask.seenBy(y, r-y.from, lo, hi)
		}
		lo, hi = lo-x.from, hi-x.from
		for end := 0; lo < hi; lo = end {
			part := lo / minBlockK * minBlockK
			if end = min(part+minBlockK, hi); x.mask.t != nil && j.hides(&x.seqTile, y.h, x.from+part, x.from+part+minBlockK) {
				continue
			}
			if byRanges && !x.mask.groups[(r-y.from)/edgeGroup].sees(x.from+lo, x.from+end) {
				continue
			}
			isa.add(isa.addProduct, isa.addProductMasked, dq[(r-y.from)*step:], step,
				x.ds[(r-y.from)*dsStep(&j.plan)+lo:], dsStep(&j.plan), x.k[lo*x.kStep:], x.kStep, rows, end-lo, p.Dim)
		}
	}
}

// add computes a product of any number of columns: whole vectors of lanes, and the rest by masked. If masked is
// nil, rows are padded to whole vectors.
func (isa *laneRoutines) add(whole productFunc, masked maskedProductFunc, c []float32, cStep int, a []float32, aStep int, b []float32, bStep, rows, n, columns int) {
	all := columns / isa.lanes * isa.lanes
	if masked == nil {
		all = ceilDiv(columns, isa.lanes) * isa.lanes
	}
	if all > 0 {
		whole(&c[0], cStep, &a[0], aStep, &b[0], bStep, rows, n, all)
	}
	if all < columns {
		masked(&c[all], cStep, &a[0], aStep, &b[all], bStep, rows, n, laneMask(0, isa.lanes, columns-all))
	}
}

// direct reports whether products can read the rows of t in place, without a padded float32 copy.
func (isa *laneRoutines) direct(t *flashkit.Tensor) bool {
	return isa.directRows(t.DType(), t.Shape()[3])
}

func (isa *laneRoutines) directRows(t flashkit.DType, dim int) bool {
	return t == flashkit.Float32 && dim == isa.width(dim)
}

// width returns the distance between rows of dim elements in workspace: dim, or dim padded to whole
// vectors if products need whole vectors.
func (isa *laneRoutines) width(dim int) int {
	if isa.addProductMasked != nil {
		return dim
	}
	return pad(dim)
}

// rows returns n rows of head h of t, from row r on, as float32. The result is a slice of t if
// direct(t) is true, and otherwise a copy in buf, with rows of width elements.
func (isa *laneRoutines) rows(t *flashkit.Tensor, b, h, r, n, width int, buf []float32) (rows []float32, step int) {
	if isa.direct(t) {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	isa.loadRows(buf, width, t, b, h, r, n)
	return buf, width
}
