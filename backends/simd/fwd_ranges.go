//go:build (amd64 || arm64) && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// rangeScratch is the workspace of ranges of keys in a forward pass.
type rangeScratch struct {
	item   rangeBounds             // of the item's rows
	tiles  [rangeTiles]rangeBounds // of the item's tiles
	rows   [maskGroup]rowRanges    // of the rows of one tile
	loaded int                     // number of the tile whose ranges are in rows, plus 1
	tile   int                     // number of the tile that is computed
}

const rangeTiles = 2 * maxTiles // most tiles of an item of any kernel; AMX has the largest items

const rangeFloats = int(unsafe.Sizeof(rangeScratch{})) / 4

func (j *job) newRangeScratch(ws *pool.Arena) *rangeScratch {
	if j.p.Score.Ranges == 0 {
		return nil
	}
	return (*rangeScratch)(unsafe.Pointer(&ws.Take(rangeFloats)[0]))
}

// narrow cuts an item's keys to the keys that the ranges show to some row, if the call has ranges.
func (x *keyMask) narrow(j *job, at *laneRange, lanes int) {
	if x.ranges != nil {
		x.ranges.setItem(j, at, lanes)
	}
}

// hidesBlock reports whether mask or ranges hide the keys [lo, hi) from all rows of an item. It reads a
// mask that is the same for all rows.
func (x *keyMask) hidesBlock(j *job, isa *laneRoutines, s *seqTile, lo, hi int) bool {
	return x.ofKeys && !x.read(j, isa, s, 0, 1, lo, hi) || x.ranges != nil && !x.ranges.item.sees(groupsOf(lo, hi))
}

// setItem computes the bounds of an item's tiles. It cuts the item's keys to the keys that some row
// may see, extended to whole groups of keys.
func (x *rangeScratch) setItem(j *job, at *laneRange, lanes int) {
	x.item, x.loaded = noBounds, 0
	for r := at.from; r < at.to; r += lanes {
		tile := &x.tiles[(r-at.from)/lanes]
		*tile = j.boundsOf(&at.seqTile, at.h, r, min(r+lanes, at.to))
		x.item.join(tile)
	}
	at.narrow(&x.item)
}

// narrow cuts the item's keys to the keys that some row may see, extended to whole groups of keys.
func (at *laneRange) narrow(bounds *rangeBounds) {
	lo, hi := bounds.hull(at.first, at.last)
	if lo >= hi {
		at.last = at.first
		return
	}
	lo, hi = groupsOf(lo, hi)
	at.first, at.last = max(at.first, lo), min(at.last, hi)
}

// groupsOf extends [lo, hi) to whole groups of keys, as a mask is read.
func groupsOf(lo, hi int) (first, last int) {
	return lo &^ (maskGroup - 1), (hi + maskGroup - 1) &^ (maskGroup - 1)
}

// group reports whether the bounds of a tile show that its rows see all keys of the group that begins
// at key k, or none. If neither is known, group sets x.rows to the ranges of the tile's n rows. row is
// the tile's first row.
func (x *rangeScratch) group(j *job, s *seqTile, row, n, lanes, k int) (known, whole bool) {
	tile := (row - s.from) / lanes
	bounds := &x.tiles[tile]
	if !bounds.sees(k, k+maskGroup) {
		return true, false
	}
	if !j.p.Score.Mask && bounds.seesAll(k, min(k+maskGroup, s.M)) {
		return true, true
	}
	if x.loaded != tile+1 {
		for r := range n {
			x.rows[r] = rangesOf(j.args, j.p.Score.Ranges, s.b, s.h, row+r)
		}
		x.loaded = tile + 1
	}
	return false, false
}

// show sets bit r of masks[i] if row row+r sees key from+i, for n rows.
func (j *job) show(s *seqTile, row, n int, masks []uint32, from int) {
	t := &j.args.Ranges
	ends, at, step := t.Int32s(), t.Repeated(s.b, s.h, row), rowStep(t)
	clear(masks)
	for r := range n { // flip the row's bit at the ends of its ranges
		for of := ends[at:][:2*j.p.Score.Ranges]; len(of) > 0; of = of[2:] {
			lo, hi := max(int(of[0])-from, 0), min(int(of[1])-from, len(masks))
			if lo >= hi {
				continue
			}
			masks[lo] ^= 1 << r
			if hi < len(masks) {
				masks[hi] ^= 1 << r
			}
		}
		at += step
	}
	seen := uint32(0)
	for i, flipped := range masks {
		seen ^= flipped
		masks[i] = seen
	}
}

// readGroup sets words to bits of the keys that mask and ranges show, one word a row, for the group
// that begins at key k. row is the first row.
func (x *keyMask) readGroup(j *job, isa *laneRoutines, s *seqTile, row, k int, words []uint32) {
	if t := &j.args.Mask; j.p.Score.Mask {
		isa.maskWords(words, x.words[maskGroup:], t.Bools()[t.Repeated(s.b, s.h, row):], rowStep(t), k, s.M)
	}
	for r := 0; x.ranges != nil && r < len(words); r++ {
		seen := x.ranges.rows[r].bits(k, min(maskGroup, s.M-k))
		if j.p.Score.Mask {
			seen &= words[r]
		}
		words[r] = seen
	}
}

// part returns the end of the longest part of [from, to) that begins at from and has one value of
// hides: hidesNothing, hidesSome or hidesAll. It also returns this value.
func (x *rangeBounds) part(from, to int) (until, hides int) {
	until, hides = x.segment(from, to)
	for until < to {
		end, other := x.segment(until, to)
		if other != hides {
			break
		}
		until = end
	}
	return until, hides
}

// segment is like part, but the part also ends at the next bound of a range.
func (x *rangeBounds) segment(from, to int) (until, hides int) {
	for r := range x.some {
		to = cutAt(&x.all[r], from, cutAt(&x.some[r], from, to))
	}
	switch {
	case x.seesAll(from, to):
		return to, hidesNothing
	case x.sees(from, to):
		return to, hidesSome
	}
	return to, hidesAll
}

// cutAt returns the first end of a range after from, or to if this is less. An empty range has no end.
func cutAt(x *[2]int, from, to int) int {
	switch {
	case x[0] >= x[1]:
		return to
	case from < x[0]:
		return min(to, x[0])
	case from < x[1]:
		return min(to, x[1])
	}
	return to
}
