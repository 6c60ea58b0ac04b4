//go:build !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/half"
)

// What the kernels of AMX share. A product adds to C [rows][columns] the product of
// A, rows as they lie, and B, pairs of rows as pairRows packs them. It takes 16 rows
// of A and 16 pairs of B, or twice as many, all of them or none. So what is masked
// has the weight 0. That is no shield against NaN and infinities: where the other
// operand has any, they are packed as 0 and added apart, for those who see them.

func fitsAMXBF16(p flashkit.Problem) string { return fitsPairs(amxbf16(), p) }

var (
	fwdTilePace  = pace{start: 1200, flop: .0006, pair: .24, element: .21, pack: .23, feature: .7}
	fwdPlanePace = pace{start: 5400, flop: .0034, pair: .24, element: .25, widen: .19, pack: .6, feature: 1}
	bwdPlanePace = pace{start: 9300, flop: .003, pair: .61, element: 1.1, pack: 2.7}
	bwdTilePace  = pace{start: 12000, flop: .00044, pair: .29, element: .58, pack: .91}
)

// crowded returns the pace of products of tiles in float32 where many cores compute
// them: then they wait for one another, as two threads of a core share the unit and
// the clock falls, and lanes of float32 wait less.
func crowded(c pace, workers int) pace {
	const many, slower = 8, 1.45 // workers, and how many times as long
	if workers >= many {
		c.flop *= slower
	}
	return c
}

// blocksOf calls load for each block of up to size keys that rows of an item see,
// and then accumulate for each of n tiles, until the call is canceled. A block begins at
// a multiple of tileStep, and ends at one or at the end.
func (j *job) blocksOf(at laneRange, size, n int, load func(lo, hi int), accumulate func(tile int)) {
	if at.first >= at.last {
		return
	}
	first, last := at.first&^(tileStep-1), min(upToTiles(at.last), at.M)
	for k0 := first / size * size; k0 < last; k0 += size {
		load(max(k0, first), min(k0+size, last))
		for t := range n {
			if j.Canceled() {
				return
			}
			accumulate(t)
		}
	}
}

// partsOf calls f for the parts of the block at hand that rows of the tile see. Some rows
// do not see some keys that are at an edge of the band, or hidden by the mask.
func (j *job) partsOf(t *laneTile, x *laneScratch, f func(from, keys int, edge, hidden bool)) {
	first, _ := t.seq.Keys(t.from)
	_, last := t.seq.Keys(t.from + t.n - 1)
	from, to := max(x.lo, first&^(tileStep-1)), min(x.hi, upToTiles(last))
	if first >= last || from >= to {
		return
	}
	if x.mask.ofRows {
		x.mask.read(j, &avx512Lanes, &t.seq, t.from, t.n, from, to)
	}
	for from < to {
		until, hides, whole := to, hidesNothing, false
		if x.mask.asked() {
			until, hides = x.mask.tilePart(from, to)
		}
		if hides != hidesAll {
			until, whole = wholePart(&t.seq.Seq, t.from, t.n, from, until, tileStep)
			f(from, until-from, !whole, hides == hidesSome)
		}
		from = until
	}
}

// tilePart is part, but keys of which the mask hides nothing go with those beside them of
// which it hides some: tiles are set up for each part, and all of O is read and written.
func (x *keyMask) tilePart(from, to int) (until, hides int) {
	if x.ofKeys && x.last.from == from && x.last.to == to {
		return x.last.until, x.last.hides
	}
	until, hides = x.part(from, to)
	for until < to && hides != hidesAll {
		end, other := x.part(until, to)
		if other == hidesAll {
			break
		}
		until, hides = end, hidesSome
	}
	if hides == hidesSome {
		x.showAll(from, until)
	}
	x.last.from, x.last.to, x.last.until, x.last.hides = from, to, until, hides
	return until, hides
}

// showAll sets the rows that see each of the keys [from, to) of which the mask hides nothing.
func (x *keyMask) showAll(from, to int) {
	for k := from; k < to; {
		end, hides := x.segment(k)
		end = min(end, to)
		if hides == hidesNothing {
			for i := range x.visible[k-x.from : end-x.from] {
				x.visible[k-x.from+i] = ^uint32(0)
			}
		}
		k = end
	}
}

// planTiles is planRows for kernels that pack K and V for each item, which takes them as
// long as a tile of rows or two. Workers get fewer and larger items where the one with
// the most to do ends sooner by that.
func (pl *plan) planTiles() {
	const atLeast, packing = itemsPerWorker / 2, 1
	avx512Lanes.planRows(pl, tileItemRows)
	heads, perHead := pl.p.Heads, ceilDiv(pl.p.QLen, pairLanes)
	items := func(group int) int { return heads * pl.rowTiles(group*pairLanes) }
	most := func(group int) int { return ceilDiv(items(group), pl.workers) * (group + packing) }
	best := pl.tilesPerItem
	for g := pl.tilesPerItem + 1; g <= min(perHead, tileItemRows/pairLanes) && items(g) >= atLeast*pl.workers; g++ {
		if most(g) < most(best) {
			best = g
		}
	}
	if 20*most(best) < 19*most(pl.tilesPerItem) { // or else small items are better, as cores differ
		pl.tilesPerItem = best
		pl.planHeads(pairLanes, 1)
	}
}

// tileKeys is tileRows of keys of a sequence, which may lie in pages.
func (j *job) tileKeys(t *flashkit.Tensor, s *seqTile, k, n int, buf []uint16) (rows []uint16, step int) {
	if j.p.Page == 0 {
		return tileRows(t, s.KVBatch, s.g, s.K0+k, n, buf)
	}
	dim := t.Shape()[3]
	if dim%tileStep == 0 && n%tileStep == 0 {
		x := j.keysOf(t, s, k, n, buf)
		return x.rows, x.step
	}
	step = upToTiles(dim)
	clear(buf[:upToTiles(n)*step])
	j.copyKeys(t, s, k, n, buf, step)
	return buf, step
}

// A packedRows is rows of a tensor in pairs, and transposed where that is wanted.
type packedRows struct {
	of      halfRows // as they lie
	n       int      // how many
	wild    bool     // they hold what is not finite, which is packed as 0
	pairs   []uint32 // [n/2][dim], up to whole steps of rows
	columns []uint32 // [dim][step]
	step    int
}

// newPackedRows has place for so many rows, a multiple of tileStep. Routines read
// pairs beyond the last row.
func newPackedRows(ws *pool.Arena, dim, rows int) packedRows {
	return packedRows{pairs: takeWords(ws, pairFloats(dim, rows)), columns: takeWords(ws, upToTiles(dim)*rows/2), step: rows / 2}
}

// pairFloats and packedFloats are the floats of pairs alone, and of all.
func pairFloats(dim, rows int) int   { return rows/2*dim + 16 }
func packedFloats(dim, rows int) int { return pairFloats(dim, rows) + upToTiles(dim)*rows/2 }

// load packs n rows of t into pairs.
func (x *packedRows) load(t *flashkit.Tensor, b, h, r, n int) { x.pack(rowsOf(t, b, h, r, n)) }

func (x *packedRows) pack(rows halfRows) {
	x.of, x.n, x.wild = rows, rows.n, false
	if x.n == 0 { // of a sequence without keys
		return
	}
	n, dim, filled := x.n, rows.dim, upToTiles(x.n)/2
	rows.pair(x.pairs)
	clear(x.pairs[(n+1)/2*dim : filled*dim])
	x.wild = !finiteAMXBF16(&rows.rows[0], rows.step, dim, n)
	if !x.wild {
		return
	}
	packed := halves(x.pairs[:filled*dim])
	for i, y := range packed {
		if isWild(y) {
			packed[i] = 0
		}
	}
}

// transpose sets the columns from the pairs. Those beyond the head dim hold what
// nobody reads.
func (x *packedRows) transpose() {
	transposeColumns(x.columns, x.step, halves(x.pairs), 2*x.of.dim, x.of.dim, upToTiles(x.n)/2)
}

// isWild reports whether a bf16 is NaN or infinite.
func isWild(x uint16) bool { return x&0x7f80 == 0x7f80 }

// eachWild calls f for the elements that are not finite of n rows, from a given
// one of them on.
func (x *packedRows) eachWild(from, n int, f func(r, c int, y float32)) {
	for r := range n {
		for c, y := range x.of.rows[(from+r)*x.of.step:][:x.of.dim] {
			if isWild(y) {
				f(r, c, half.FromBF16(y))
			}
		}
	}
}

// addWild adds to sum[c][i], in the lanes, what a product of the columns and
// weights [n/2][lanes] leaves out, where bit i of the row's mask is set.
func (x *packedRows) addWild(sum []float32, from, n int, weights, masks []uint32) {
	w := halves(weights)
	x.eachWild(from, n, func(r, c int, y float32) {
		for i := range pairLanes {
			if masks[r]>>i&1 != 0 {
				sum[c*pairLanes+i] += half.FromBF16(w[2*(r/2*pairLanes+i)+r%2]) * y
			}
		}
	})
}

// tamePairs sets to 0 what is not finite.
func tamePairs(pairs []uint32) {
	packed := halves(pairs)
	for i, x := range packed {
		if isWild(x) {
			packed[i] = 0
		}
	}
}
