//go:build (amd64 || arm64) && !purego

package simd

import (
	"math/bits"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// A mask hides pairs of a query row and a key inside the band. It is read in groups of maskGroup
// keys. If all rows of a tile see the same contiguous keys of a group, the tile skips the group's other
// keys. Otherwise each pair of the group is masked, as at the edges of the band. The choice depends on
// the mask's values, not on its shape. Ranges of keys cut the keys of a tile at their bounds, like a
// band. A call with both reads the ranges in groups, too, as do kernels that multiply keys in pairs.

const maskGroup = 32 // keys

// How much of a range of keys a mask hides from the rows of a tile: nothing, some pairs of a row
// and a key, or all.
const (
	hidesNothing = iota
	hidesSome
	hidesAll
)

// keyMask holds the part of the mask, or of the ranges, for a tile's rows and the current block of keys.
type keyMask struct {
	ofKeys  bool                                // the mask is the same for all rows: read once per item
	ofRows  bool                                // the mask differs by row: read once per tile
	step    int                                 // keys that one instruction multiplies; it cannot skip some of them
	from    int                                 // first key of the first group of the block
	groups  [tileBlock/maskGroup + 1]keysOfMask // of the block
	visible []uint32                            // [keys], bit r is set if row r sees the key. Valid only in groups where some is true
	words   []uint32                            // [2][maskGroup]: for each row, a word with a bit per key of a group; then scratch of this size
	seen    [tileBlock/maskGroup + 1]uint32     // for each group, a bit for each key that all rows see
	ranges  *rangeScratch                       // nil in a call without ranges of keys
	alone   bool                                // ranges without a mask, and step is 1: the bounds of a tile say which keys its rows see

	last struct{ from, to, until, hides int } // last arguments and results of tilePart, reused if ofKeys
}

// keysOfMask is the range [from, to) of a group's keys that all rows see. No row sees the group's
// other keys. If the mask has another form, some is true, and from and to are unused.
type keysOfMask struct {
	from, to uint8
	some     bool
}

func (j *job) newMask(ws *pool.Arena, keys, step int) (x keyMask) {
	if j.hidesByRow() {
		x.ranges, x.step = j.newRangeScratch(ws), step
		x.alone = !j.p.Score.Mask && step == 1
		x.ofKeys = x.ranges == nil && j.args.Mask.Shape()[2] == 1
		x.ofRows = !x.ofKeys
		x.visible, x.words = takeWords(ws, keys+maskGroup), takeWords(ws, 2*maskGroup)
	}
	return x
}

func (pl *plan) keyMaskFloats(keys int) int {
	if !pl.hidesByRow() {
		return 0
	}
	if pl.p.Score.Ranges != 0 {
		keys += rangeFloats
	}
	return keys + 3*maskGroup
}

func (x *keyMask) asked() bool { return x.ofKeys || x.ofRows }

// read reads the mask of rows [row, row+n) for the groups that contain keys [lo, hi). It reports
// whether the mask shows some key to some row. A tile may be computed in items of different
// extents. So read always reads whole groups, which keeps the order of a tile's sums, and the bits
// of its result.
func (x *keyMask) read(j *job, isa *laneRoutines, s *seqTile, row, n, lo, hi int) (some bool) {
	if x.alone {
		x.ranges.tile = (row - s.from) / isa.lanes
		return true
	}
	if x.from, x.last.to = lo&^(maskGroup-1), 0; x.ofKeys {
		n = 1
	}
	for k := x.from; k < hi; k += maskGroup {
		if x.ranges != nil {
			if known, whole := x.ranges.group(j, s, row, n, isa.lanes, k); known {
				g := &x.groups[(k-x.from)/maskGroup]
				if *g = (keysOfMask{}); whole {
					g.to, some = uint8(min(maskGroup, s.M-k)), true
				}
				continue
			}
		}
		words := x.words[:n]
		x.readGroup(j, isa, s, row, k, words)
		all, any := ^uint32(0), uint32(0)
		for _, w := range words {
			all, any = all&w, any|w
		}
		g := &x.groups[(k-x.from)/maskGroup]
		x.seen[(k-x.from)/maskGroup] = all
		if *g = x.keysOf(all, any, s.M-k); g.some {
			x.spread(k-x.from, n)
		}
		some = some || any != 0
	}
	return some
}

// keysOf returns the visible range of a group, of which n keys are in the sequence. Bit i of all is
// set if every row sees key i of the group, and bit i of any if some row does.
func (x *keyMask) keysOf(all, any uint32, n int) keysOfMask {
	if any == 0 {
		return keysOfMask{}
	}
	from, to := bits.TrailingZeros32(any), bits.Len32(any)
	if any != laneMask(from, to, maskGroup) || all != any || from%x.step != 0 || to%x.step != 0 && to != n {
		return keysOfMask{some: true}
	}
	return keysOfMask{from: uint8(from), to: uint8(to)}
}

// spread sets x.visible for one group, by a transposition of the bits in x.words. at is the index
// of the group's first key in the block, and n is the number of rows. If all rows share the mask,
// x.words[0] serves all rows.
func (x *keyMask) spread(at, n int) {
	visible := (*[maskGroup]uint32)(x.visible[at:])
	if x.ofKeys {
		for i := range visible {
			visible[i] = -(x.words[0] >> i & 1)
		}
		return
	}
	clear(x.words[n:maskGroup])
	transposeBits(visible, (*[maskGroup]uint32)(x.words))
}

// part returns the end of the longest range of keys that begins at key from and has one value of
// hides: hidesNothing, hidesSome or hidesAll. It also returns this value. The end is at most to.
func (x *keyMask) part(from, to int) (until, hides int) {
	if x.alone {
		return x.ranges.tiles[x.ranges.tile].part(from, to)
	}
	until, hides = x.segment(from)
	for until < to {
		end, other := x.segment(until)
		if other != hides {
			break
		}
		until = end
	}
	return min(until, to), hides
}

// segment is like part, but the range begins at key and does not extend beyond the group that
// contains key.
func (x *keyMask) segment(key int) (until, hides int) {
	at := key - x.from
	g, begin := &x.groups[at/maskGroup], key-at%maskGroup
	switch at %= maskGroup; {
	case g.some:
		return begin + maskGroup, hidesSome
	case at < int(g.from):
		return begin + int(g.from), hidesAll
	case at < int(g.to):
		return begin + int(g.to), hidesNothing
	}
	return begin + maskGroup, hidesAll
}

// hides reports whether the current block needs masks for single pairs of a row and a key. It needs
// none if, in each group, all rows see the same range of keys. The block ends at key to.
func (x *keyMask) hides(to int) bool {
	if !x.ofKeys {
		return x.ofRows
	}
	for _, g := range x.groups[:ceilDiv(to-x.from, maskGroup)] {
		if g.some {
			return true
		}
	}
	return false
}

// finite reports whether n rows of V, step elements apart, have no NaN or infinity. Then a weight
// of 0 hides a key, and addValues needs no masks. finite may report false for finite rows, if their
// squares overflow. It runs once per block of an item, whereas addValues with masks checks V once per
// tile. sums is scratch.
func (isa *laneRoutines) finite(v []float32, step, n, vdim int, sums []float32) bool {
	if step == vdim {
		n, vdim = 1, n*vdim
	}
	whole := vdim / isa.lanes * isa.lanes
	for r := range n {
		row := v[r*step:][:vdim]
		if whole > 0 && isa.nonFinite(row, whole/isa.lanes, sums) || !allFinite(row[whole:]) {
			return false
		}
	}
	return true
}

// maskWords sets bit i of words[r] to the mask of row r at key k+i. step is the distance between
// rows of mask, in elements. The sequence has m keys, and maskWords reads no mask after the last
// key. buf is scratch of the length of words.
func (isa *laneRoutines) maskWords(words, buf []uint32, mask []bool, step, k, m int) {
	if m < isa.lanes {
		boolBits(words, mask, step, k, m)
		return
	}
	for i := 0; i < maskGroup && k+i < m; i += isa.lanes {
		from := min(k+i, m-isa.lanes) // at the row's end, re-read earlier bits and shift them out
		recompute := k + i - from
		if i == 0 {
			isa.maskBits(&words[0], &mask[from], step, len(words))
			for r := 0; r < len(words) && recompute > 0; r++ {
				words[r] >>= recompute
			}
			continue
		}
		isa.maskBits(&buf[0], &mask[from], step, len(words))
		for r, w := range buf[:len(words)] {
			words[r] |= w >> recompute << i
		}
	}
}

// boolBits does the work of maskWords for sequences with fewer keys than a tile has lanes.
func boolBits(words []uint32, mask []bool, step, k, m int) {
	clear(words)
	for r := range words {
		for i, on := range mask[r*step+k : r*step+min(k+maskGroup, m)] {
			if on {
				words[r] |= 1 << i
			}
		}
	}
}

// transposeBits sets bit r of dst[c] to bit c of src[r].
func transposeBits(dst, src *[maskGroup]uint32) {
	const (
		n8, n4, n2, n1 = 0x00ff00ff00ff00ff, 0x0f0f0f0f0f0f0f0f, 0x3333333333333333, 0x5555555555555555
	)
	var x [maskGroup / 2]uint64
	row := func(i int) uint64 { // row i in the low word and row i+16 in the high word, then the upper half of row i exchanged with the lower half of row i+16
		y := uint64(src[i]) | uint64(src[i+16])<<32
		moved := (y>>16 ^ y) & 0xffff0000
		return y ^ moved ^ moved<<16
	}
	for i := range 4 {
		a, b, c, d := row(i), row(i+4), row(i+8), row(i+12)
		a, c = exchange(a, c, 8, n8)
		b, d = exchange(b, d, 8, n8)
		x[i], x[i+4] = exchange(a, b, 4, n4)
		x[i+8], x[i+12] = exchange(c, d, 4, n4)
	}
	for i := 0; i < len(x); i += 4 {
		a, c := exchange(x[i], x[i+2], 2, n2)
		b, d := exchange(x[i+1], x[i+3], 2, n2)
		a, b = exchange(a, b, 1, n1)
		c, d = exchange(c, d, 1, n1)
		dst[i], dst[i+1], dst[i+2], dst[i+3] = uint32(a), uint32(b), uint32(c), uint32(d)
		dst[i+16], dst[i+17], dst[i+18], dst[i+19] = uint32(a>>32), uint32(b>>32), uint32(c>>32), uint32(d>>32)
	}
}

// exchange swaps the bits of x selected by mask<<n with the bits of y selected by mask.
func exchange(x, y uint64, n int, mask uint64) (uint64, uint64) {
	moved := (x>>n ^ y) & mask
	return x ^ moved<<n, y ^ moved
}
