//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit/backends/simd/internal/pool"

// fwdItem computes an item of fwd_avx512, fwd_avx2 or fwd_neon. It uses the algorithm of
// fwd_generic, with the query rows of a tile in the lanes. S and P are [keys][lanes], and O is
// transposed to [vdim][lanes]. The products broadcast an element of K or V and multiply it by a
// vector of Q or P. So K and V need no transposition, and row maxima and sums need no shuffles.
// Only Q and O are transposed.
//
// An item is up to itemRows rows of one head. Each block of keys is widened once if it is 16-bit,
// and all tiles of the item process the block while it is in cache. Blocks begin at multiples of
// isa.keys, or a short sequence is one block. So the bits of a tile do not depend on the other tiles
// of its item.

func (isa *laneRoutines) fwdItem(j *job, ws *pool.Arena, item int) {
	p, lanes, keys := &j.p, isa.lanes, isa.blockKeys(&j.plan)
	at := j.laneRange(item)
	x := laneScratch{
		s: ws.Take(keys * lanes), masks: takeWords(ws, keys),
		kBuf: ws.Take(keys * pad(p.Dim)), vBuf: ws.Take(keys * pad(p.VDim)),
		rows: ws.Take(lanes * max(pad(p.Dim), pad(p.VDim))),
		top:  ws.Take(lanes), scratchMax: ws.Take(lanes), factors: ws.Take(lanes),
	}
	x.setFeatures(j, ws, lanes, keys, 1)
	if j.tilesPerItem == 1 { // a local array of maxTiles tiles must be zeroed, which would slow a short item
		isa.fwdHeads(j, ws, &x, &at)
		return
	}
	var tiles [maxTiles]laneTile
	isa.fwdTiles(j, ws, &x, &at, tiles[:0])
}

func (isa *laneRoutines) fwdHeads(j *job, ws *pool.Arena, x *laneScratch, at *laneRange) {
	free := ws.Free
	for end := min(at.h+j.headsPerItem, j.p.Heads); at.h < end; at.h++ {
		var one [1]laneTile
		ws.Free, at.g = free, at.h/(j.p.Heads/j.p.KVHeads)
		isa.fwdTiles(j, ws, x, at, one[:0])
	}
}

// fwdTiles computes the tiles of one head of an item. tiles is an empty slice with capacity for all
// these tiles.
func (isa *laneRoutines) fwdTiles(j *job, ws *pool.Arena, x *laneScratch, at *laneRange, tiles []laneTile) {
	first, last := at.first, at.last
	x.mask.narrow(j, at, isa.lanes)
	if isa.isShort(j, at) {
		isa.fwdShort(j, ws, x, at, &tiles[:1][0])
		return
	}
	x.beginMass(j, ws, isa.lanes, at.first, at.last)
	for r := at.from; r < at.to; r += isa.lanes {
		tiles = tiles[:len(tiles)+1]
		isa.beginTile(j, ws, &tiles[len(tiles)-1], x, &at.seqTile, r, min(isa.lanes, at.to-r))
	}
	for lo := at.first; lo < at.last; lo = x.hi {
		isa.loadBlock(j, x, at, lo)
		isa.fetchNextBlock(j, &x.ahead, at, x.hi)
		for t := range tiles {
			if j.Canceled() {
				return
			}
			isa.flushRun(j, &tiles[t], x.factors, lo)
			isa.accumulate(j, &tiles[t], x)
		}
	}
	for t := range tiles {
		isa.finish(j, &tiles[t], x)
	}
	if x.mass.on {
		isa.endMass(j, ws, x, &at.seqTile)
	}
	at.first, at.last = first, last // of the item's next head
	j.clearRows(&at.seqTile)
}
