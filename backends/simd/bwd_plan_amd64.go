//go:build !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

const (
	bwdRows   = 128 // query rows of a tile: so often are the sums of dK and dV loaded and stored
	bwdNarrow = 64  // head dim up to which Q and dO of so many fit beside those sums; else half as many
	bwdBlockK = 128 // keys of a block: their dK and dV stay in the second-level cache
	minBlockK = 64
	chainKeys = 512 // keys of a head that add to the dQ of one chain, before those of the next: whole blocks
	minChains = 4   // of all heads together
	edgeGroup = 8   // rows of a register tile, which meet an edge of the band together
)

// planLanes is planBlocks for products of vectors.
func (j *job) planLanes() {
	rows := bwdRows
	if max(j.p.Dim, j.p.VDim) > bwdNarrow {
		rows /= 2
	}
	j.planBlocks(rows, bwdBlockK, minBlockK)
	j.copied = min(j.rows, j.p.QLen) // products of vectors take no rows beyond the last
}

// planBlocks sets the rows of a tile and the keys of a block: twice as many as asked
// for, or so many, or fewer, down to least. That does not change the bits: every sum
// goes over keys or rows in the same order, and over least of them at a time. It sets the chains, too, which the number
// of workers must not touch.
//
// Every block reads Q and dO and updates dQ. Where these outgrow the
// second-level cache, large blocks do so less often. Small ones balance better.
func (j *job) planBlocks(rows, keys, least int) {
	const cache = 1 << 20
	p := &j.p
	j.rows, j.keys, j.copied = rows, keys, rows
	j.chains = max(1, min(minChains/max(1, p.Batch*p.Heads), tiles(mostSeen(p), chainKeys)))
	if 4*float64(p.QLen)*(2*float64(p.Dim)+float64(p.VDim)) > cache {
		j.keys *= 2
	}
	for j.workers > 1 && j.keys > least && !j.balances(p.Batch*p.KVHeads*tiles(p.KVLen, j.keys)) {
		j.keys /= 2
	}
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
// Without a mask blocks are equal, so rounds must be nearly whole, too.
func (j *job) balances(blocks int) bool {
	whole := 10*blocks >= 9*j.workers*tiles(blocks, j.workers)
	return blocks >= 4*j.workers && (whole || j.p.Band != (flashkit.Band{}))
}

// A keyRange is the keys of one item.
type keyRange struct{ b, g, from, to int }

// keyRangeOf returns the keys of an item: heads take turns.
func (j *job) keyRangeOf(item int) keyRange {
	heads := j.p.Batch * j.p.KVHeads
	from := item / heads * j.keys
	return keyRange{b: item % heads / j.p.KVHeads, g: item % j.p.KVHeads, from: from, to: min(from+j.keys, j.p.KVLen)}
}

// visited returns the tiles of query rows that see keys of the block, [first, end).
func (j *job) visited(x keyRange) (first, end int) {
	lo, _ := j.p.Queries(x.from)
	_, hi := j.p.Queries(x.to - 1)
	if lo >= hi {
		return 0, 0
	}
	return lo / j.rows, (hi-1)/j.rows + 1
}

// chain returns the chain of a block of keys.
func (j *job) chain(x keyRange) int { return x.from / chainKeys % j.chains }

// before returns the item of the block before it in its chain, or a negative number.
func (j *job) before(x keyRange, item int) int {
	blocks := 1
	if x.from%chainKeys == 0 {
		blocks += (j.chains - 1) * chainKeys / j.keys
	}
	return item - blocks*j.p.Batch*j.p.KVHeads
}
