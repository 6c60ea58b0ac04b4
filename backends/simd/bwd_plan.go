//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

const (
	bwdRows   = 128 // query rows of a tile: so often are the sums of dK and dV loaded and stored
	bwdNarrow = 64  // head dim up to which Q and dO of so many fit beside those sums; else half as many
	bwdBlockK = 128 // keys of a block: their dK and dV stay in the second-level cache
	minBlockK = 64
	chainKeys = 512 // keys of a head that add to the dQ of one chain, before those of the next: whole blocks
	minChains = 4   // of the heads of a sequence together
	edgeGroup = 8   // rows of a register tile, which meet an edge of the band together
)

// planLanes is planBlocks for products of vectors.
func (pl *plan) planLanes() {
	rows := bwdRows
	if max(pl.p.Dim, pl.p.VDim) > bwdNarrow {
		rows /= 2
	}
	pl.planBlocks(rows, bwdBlockK, minBlockK)
	pl.copied = min(pl.rows, pl.p.QLen) // products of vectors take no rows beyond the last
}

// planBlocks sets the rows of a tile and the keys of a block: twice as many as asked
// for, or so many, or fewer, down to least. That does not change the bits: every sum
// goes over keys or rows in the same order, and over least of them at a time. It sets the chains, too, which the number
// of workers must not touch.
//
// Every block reads Q and dO and updates dQ. Where these outgrow the
// second-level cache, large blocks do so less often, as they do with rows of a bias, which
// lie far apart. Small ones balance better.
func (pl *plan) planBlocks(rows, keys, least int) {
	const cache = 1 << 20
	p := &pl.p
	pl.rows, pl.keys, pl.copied = rows, keys, rows
	pl.chains = max(1, min(minChains/max(1, p.Heads), ceilDiv(mostSeen(p), chainKeys)))
	if p.Score.Bias || 4*float64(p.QLen)*(2*float64(p.Dim)+float64(p.VDim)) > cache {
		pl.keys *= 2
	}
	for pl.workers > 1 && pl.keys > least && !pl.balances(pl.evenBlocks(pl.keys)) {
		pl.keys /= 2
	}
}

// evenBlocks returns how many blocks of so many keys take as long as all of them if each takes
// as long as the longest.
func (pl *plan) evenBlocks(keys int) int {
	if !pl.ragged {
		return pl.p.KVHeads * pl.keyTiles(keys)
	}
	sum, longest := 0., 1.
	for b := range pl.p.Batch {
		s := pl.call.Seq(b)
		sum += float64(s.N) * float64(s.M)
		longest = max(longest, float64(s.N)*float64(min(s.M, keys)))
	}
	return count(float64(pl.p.KVHeads) * sum / longest)
}

// mostSeen returns how many keys a row sees at most.
func mostSeen(p *flashkit.Problem) int {
	seen := 1
	for _, side := range [2]int{p.Band.Left(), p.Band.Right()} {
		if side == flashkit.Unlimited {
			return p.KVLen
		}
		seen += min(side, p.KVLen)
	}
	return min(seen, p.KVLen)
}

// balances reports whether so many blocks of keys keep the workers busy for about
// nine tenths of the time. Workers may differ in speed, so each should have four.
// Without a mask blocks of sequences of one length are equal, so rounds must be nearly whole, too.
func (pl *plan) balances(blocks int) bool {
	whole := 10*blocks >= 9*pl.workers*ceilDiv(blocks, pl.workers)
	return blocks >= 4*pl.workers && (whole || pl.ragged || pl.p.Band != (flashkit.Band{}))
}

// A keyRange is the keys of one item.
type keyRange struct {
	seqTile
	behind int // the item before it in the chain of the head at hand, or a negative number
}

// cutBlocks makes the tables of tiles of query rows and of blocks of keys.
func (pl *plan) cutBlocks() {
	pl.byRow.cut(pl, true, pl.rows, itemOrder{heads: pl.p.Heads, turns: 1})
	pl.byKey.cut(pl, false, pl.keys, itemOrder{heads: pl.p.KVHeads, longestFirst: true})
}

// visited returns the tiles of query rows that see keys of the block, [first, end).
func (pl *plan) visited(x *seqTile) (first, end int) {
	lo, hi := x.rowsSeen()
	if lo >= hi {
		return 0, 0
	}
	return lo / pl.rows, (hi-1)/pl.rows + 1
}

// after returns the head and the tile that a block takes after tile t of head h, if there
// is one.
func (pl *plan) after(x *keyRange, h, t int) (int, int, bool) {
	first, end := pl.visited(&x.seqTile)
	group := pl.p.Heads / pl.p.KVHeads
	last := h == (x.g+1)*group-1
	switch {
	case pl.tilesFirst() && !last:
		return h + 1, t, true
	case pl.tilesFirst():
		return x.g * group, t - 1, t > first
	case t > first:
		return h, t - 1, true
	}
	return h + 1, end - 1, !last
}

// chain returns the chain of a block of keys.
func (pl *plan) chain(x *keyRange) int { return x.from / chainKeys % pl.chains }

// before returns the item of the block before it in its chain, or a negative number.
func (pl *plan) before(x *keyRange, item int) int {
	blocks := 1
	if x.from%chainKeys == 0 {
		blocks += (pl.chains - 1) * chainKeys / pl.keys
	}
	if x.from < blocks*pl.keys {
		return -1
	}
	return item - blocks*pl.byKey.span(item).turns
}
