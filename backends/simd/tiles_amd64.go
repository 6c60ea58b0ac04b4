//go:build !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/half"
)

// This file is shared by the AMX kernels. A product adds A B to C, [rows][columns]. A has plain
// rows, B is packed by pairRows. A product takes 16 or 32 rows of A and 16 or 32 pairs of B. It
// cannot skip single keys, so masked keys get weight 0. But 0 times NaN or infinity is NaN. So NaN
// and infinite elements are packed as 0. Their products are added separately, for the rows that see
// these elements.

func fitsAMXBF16(p flashkit.Problem) string { return fitsPairs(amxbf16(), p) }

var (
	fwdTilePace  = pace{start: 1302, flop: .0006, pair: .127, element: .169, pack: .175, feature: .7}
	fwdPlanePace = pace{start: 2864, flop: .0044, pair: .388, element: .326, widen: .222, pack: .478, feature: 1}
	bwdPlanePace = pace{start: 4145, tile: 278, flop: .0034, pair: 2.16, element: .654, pack: .85}
	bwdTilePace  = pace{start: 2635, tile: 549, flop: .0006, pair: .295, element: .499, pack: .364}
)

// crowded returns pace c of float32 tile products, slowed if there are many workers. Two threads
// then share one tile unit, and the clock falls. Kernels with float32 vectors slow down less.
func crowded(c pace, workers int) pace {
	const many, slower = 8, 1.45 // workers, and the factor
	if workers >= many {
		c.flop *= slower
	}
	return c
}

// blocksOf calls load for each block of up to size keys that an item's rows see. After each call of
// load, it calls accumulate for each of n tiles. It stops when the call is canceled. Blocks begin
// and end at multiples of tileStep, or end with the sequence.
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

// partsOf calls f for each part of the current block that is visible to some row of t. A part is
// keys [from, from+keys). edge tells f whether the band may hide some of these keys from some row.
// hidden tells f the same about the mask.
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
			until, whole = t.seq.wholePart(t.from, t.n, from, until, tileStep)
			f(from, until-from, !whole, hides == hidesSome)
		}
		from = until
	}
}

// tilePart is like part, but it joins partly hidden ranges with adjacent visible ranges. Fewer
// parts are faster, because each part needs tile setup and a pass over O.
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

// showAll sets all bits of visible for the keys of [from, to) that the mask shows to all rows.
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

// planTiles does the work of planRows for kernels that pack K and V for each item. Packing takes
// about as long as computing one tile of rows. So planTiles makes fewer and larger items if the
// busiest worker then ends sooner.
func (pl *plan) planTiles() {
	const atLeast, packing = itemsPerWorker / 2, 1
	avx512Lanes.planRows(pl, tileItemRows)
	heads, perHead := pl.headGroups(), ceilDiv(pl.p.QLen*pl.fold, pairLanes)
	items := func(tiles int) int { return heads * pl.rowTiles(tiles*pairLanes) }
	most := func(tiles int) int { return ceilDiv(items(tiles), pl.workers) * (tiles + packing) }
	best := pl.tilesPerItem
	for g := pl.tilesPerItem + 1; g <= min(perHead, tileItemRows/pairLanes) && items(g) >= atLeast*pl.workers; g++ {
		if most(g) < most(best) {
			best = g
		}
	}
	if 20*most(best) < 19*most(pl.tilesPerItem) { // else keep small items, as cores differ in speed
		pl.tilesPerItem = best
		pl.planHeads(pairLanes, 1)
	}
}

// tileKeys does the work of tileRows for n keys of a sequence from key k on. The keys may be in
// pages.
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

// packedRows is rows of a tensor, packed in pairs, and transposed on demand.
type packedRows struct {
	of        halfRows // the plain rows
	n         int      // number of rows
	nonFinite bool     // some element is NaN or infinite; pairs hold 0 for it
	pairs     []uint32 // [n/2][dim], padded to whole steps of rows
	columns   []uint32 // [dim][step]
	step      int
}

// newPackedRows allocates room for the given number of rows, a multiple of tileStep. pairs has 16
// words more, because routines read beyond the last row.
func newPackedRows(ws *pool.Arena, dim, rows int) packedRows {
	return packedRows{pairs: takeWords(ws, pairFloats(dim, rows)), columns: takeWords(ws, upToTiles(dim)*rows/2), step: rows / 2}
}

// pairFloats returns the workspace of pairs, in floats. packedFloats returns the workspace of pairs
// and columns.
func pairFloats(dim, rows int) int   { return rows/2*dim + 16 }
func packedFloats(dim, rows int) int { return pairFloats(dim, rows) + upToTiles(dim)*rows/2 }

// load packs n rows of t into pairs.
func (x *packedRows) load(t *flashkit.Tensor, b, h, r, n int) { x.pack(rowsOf(t, b, h, r, n)) }

func (x *packedRows) pack(rows halfRows) {
	x.of, x.n, x.nonFinite = rows, rows.n, false
	if x.n == 0 { // a sequence without keys
		return
	}
	n, dim, filled := x.n, rows.dim, upToTiles(x.n)/2
	rows.pair(x.pairs)
	clear(x.pairs[(n+1)/2*dim : filled*dim])
	x.nonFinite = !finiteAMXBF16(&rows.rows[0], rows.step, dim, n)
	if !x.nonFinite {
		return
	}
	packed := halves(x.pairs[:filled*dim])
	for i, y := range packed {
		if isNonFinite(y) {
			packed[i] = 0
		}
	}
}

// transpose sets x.columns to the transpose of x.pairs. Columns beyond the head dim are undefined.
func (x *packedRows) transpose() {
	transposeColumns(x.columns, x.step, halves(x.pairs), 2*x.of.dim, x.of.dim, upToTiles(x.n)/2)
}

// isNonFinite reports whether a bf16 is NaN or infinite.
func isNonFinite(x uint16) bool { return x&0x7f80 == 0x7f80 }

// eachNonFinite calls f for the elements of rows [from, from+n) that are NaN or infinite.
func (x *packedRows) eachNonFinite(from, n int, f func(r, c int, y float32)) {
	for r := range n {
		for c, y := range x.of.rows[(from+r)*x.of.step:][:x.of.dim] {
			if isNonFinite(y) {
				f(r, c, half.FromBF16(y))
			}
		}
	}
}

// addNonFinite adds to sum[c][i] the NaN and infinite elements of column c in rows [from, from+n),
// each times its row's weight for lane i. If x has keys, a lane is a query row of the tile. If x
// has query rows, a lane is a key. weights is [n/2][pairLanes]: the uint32 of pair j and lane i
// holds the two bf16 weights of rows from+2j and from+2j+1. Row from+r adds to lane i only if bit i
// of masks[r] is set.
func (x *packedRows) addNonFinite(sum []float32, from, n int, weights, masks []uint32) {
	w := halves(weights)
	x.eachNonFinite(from, n, func(r, c int, y float32) {
		for i := range pairLanes {
			if masks[r]>>i&1 != 0 {
				sum[c*pairLanes+i] += half.FromBF16(w[2*(r/2*pairLanes+i)+r%2]) * y
			}
		}
	})
}

// clearNonFinite sets the NaN and infinite elements of pairs to 0.
func clearNonFinite(pairs []uint32) {
	packed := halves(pairs)
	for i, x := range packed {
		if isNonFinite(x) {
			packed[i] = 0
		}
	}
}
