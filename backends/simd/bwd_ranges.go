//go:build (amd64 || arm64) && !purego

package simd

import "math"

// setBounds stores the bounds of the ranges of a tile's rows, for all blocks of keys.
func (x *tileStats) setBounds(j *job, y *seqTile) {
	bounds := j.boundsOf(y, y.h, y.from, y.to)
	for i, of := range [...][2]int{bounds.some[0], bounds.some[1], bounds.all[0], bounds.all[1]} {
		for end, key := range of {
			x.bounds[2*i+end] = math.Float32frombits(uint32(min(key, math.MaxInt32)))
		}
	}
}

func (x *tileStats) rangeBounds() (bounds rangeBounds) {
	key := func(i int) int { return int(math.Float32bits(x.bounds[i])) }
	bounds.some = rowRanges{{key(0), key(1)}, {key(2), key(3)}}
	bounds.all = rowRanges{{key(4), key(5)}, {key(6), key(7)}}
	return bounds
}

// hidesTile sets the bounds of a tile in a call with ranges. It reports whether the ranges hide all keys
// of the block from all rows, and the tile can be skipped. A tile with a bias cannot, because it also
// writes dBias.
func (m *rowMask) hidesTile(j *job, x *keyRange, stats *tileStats) bool {
	if !m.ranges {
		return false
	}
	m.bounds = stats.rangeBounds()
	return !j.p.Score.Bias && !m.bounds.sees(x.from, x.to)
}

// setGroups sets the bounds of the groups of rows of a tile, which begins at row from of head h.
func (m *rowMask) setGroups(j *job, x *keyRange, h, from int) {
	if !m.ranges {
		return
	}
	to := min(from+j.rows, x.N)
	for r := from; r < to; r += edgeGroup {
		m.groups[(r-from)/edgeGroup] = j.boundsOf(&x.seqTile, h, r, min(r+edgeGroup, to))
	}
}

// skipTile lets the tile pass without adding to it, in a kernel that sums dQ in runs of keys.
func (isa *laneRoutines) skipTile(j *job, x *keyRange, stats *tileStats, item, h, t int, at int64) {
	if j.waitFor(x.predecessor, at) {
		isa.flushKeyRun(j, stats, x, h, t)
		j.progress[item].Store(at + 1)
	}
}

// passTile lets a tile pass without adding to it. The block still waits for the block before, so that
// later blocks add to dQ in order.
func (j *job) passTile(before, item int, at int64) {
	if j.waitFor(before, at) {
		j.progress[item].Store(at + 1)
	}
}

// hidesPart reports whether mask or ranges hide the keys [from, to) from all rows of the tile of head h.
func (m *rowMask) hidesPart(j *job, s *seqTile, h, from, to int) bool {
	return j.hides(s, h, from, to) || m.ranges && !m.bounds.sees(from, to)
}

// hideRanges clears the bits of keys in x.masks that the ranges hide, for rows [lo, hi) of the tile
// and the panel that begins at key k. It returns the rows from the first group of edgeGroup rows that
// sees a key of the panel to the last. It sets dS of the other rows to 0.
func (isa *laneRoutines) hideRanges(j *job, x *keyBlock, y *rowTile, k, keys, lo, hi int) (first, last int) {
	first, last = hi, lo
	for g := lo; g < hi; g += edgeGroup {
		end, bounds, left := min(g+edgeGroup, hi), &x.mask.groups[g/edgeGroup], uint32(0)
		switch all := bounds.seesAll(k, k+keys); {
		case all && y.inBand && x.mask.t == nil:
			left = 1
		case all || bounds.sees(k, k+keys):
			if !all {
				j.hideKeys(x.masks[g:end], x.b, y.h, y.from+g, k, isa.lanes)
			}
			for _, of := range x.masks[g:end] {
				left |= of
			}
		}
		if left != 0 {
			first, last = min(first, g), end
		} else {
			clear(x.masks[g:end])
		}
	}
	step, at := dsStep(&j.plan), k-x.from
	for r := lo; r < hi; r++ {
		if r < first || r >= last {
			clear(x.ds[r*step+at:][:isa.lanes])
		}
	}
	return first, last
}

// hideByRanges clears the bits of keys that the ranges hide, as hide does for the mask. The panel has the
// given number of keys. It reports whether any bit is left.
func (m *rowMask) hideByRanges(j *job, masks []uint32, b, h, row, k, keys int) bool {
	if !m.ranges || m.bounds.seesAll(k, k+keys) {
		return true
	}
	if !m.bounds.sees(k, k+keys) {
		return false
	}
	j.hideKeys(masks, b, h, row, k, m.isa.lanes)
	left := uint32(0)
	for _, of := range masks {
		left |= of
	}
	return left != 0
}

// hideKeys clears the bits of keys in masks that the ranges hide. masks[0] is the mask of a row, and
// its bit 0 stands for key k.
func (j *job) hideKeys(masks []uint32, b, h, row, k, lanes int) {
	t := &j.args.Ranges
	ends, at, step := t.Int32s(), t.Repeated(b, h, row), rowStep(t)
	for i := range masks {
		of := rangesAt(ends[at:], j.p.Score.Ranges)
		masks[i] &= of.bits(k, lanes)
		at += step
	}
}

// seenBy returns the keys [first, last) of [lo, hi) that a row of the group from row r of the tile on
// may see. If the band hides nothing, next groups of the same bounds join the group, and rows is their
// number of rows.
func (m *rowMask) seenBy(y *rowTile, r, lo, hi int) (rows, first, last int) {
	g := r / edgeGroup
	bounds, n := &m.groups[g], ceilDiv(y.to-y.from, edgeGroup)
	for g++; y.inBand && g < n && m.groups[g] == *bounds; {
		g++
	}
	first, last = bounds.hull(lo, hi)
	return min(g*edgeGroup, y.to-y.from) - r, first, last
}

// inRanges reports whether a range of the row has the key.
func (j *job) inRanges(b, h, row, key int) bool {
	of := rangesOf(j.args, j.p.Score.Ranges, b, h, row)
	return of.has(key)
}
