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

// planBackward plans the tiles of query rows and the blocks of keys.
func (isa *laneISA) planBackward(pl *plan) {
	pl.planLanes()
	dim, vdim := pad(pl.p.Dim), pad(pl.p.VDim)
	isa.setBlocks(pl, isa.lanes*(dim+2*vdim+max(dim, vdim)+1),
		pl.gradFloats(dim, vdim)+pl.maskedFloats(dim, vdim)+pl.scoreFloats(isa.lanes)+pl.keys*(2*dim+vdim)+pl.rows*(dim+vdim)+isa.lanes*max(dim, vdim)+pl.rows*(2*isa.lanes+dsStep(pl)+1)+isa.lanes)
}

// maskedFloats returns what a block needs for a mask.
func (pl *plan) maskedFloats(dim, vdim int) int {
	if !pl.p.Score.Mask {
		return 0
	}
	return pl.maskFloats() + pl.rows*(dim+vdim) + max(dim, vdim)
}

// setBlocks sets the items of planned tiles and blocks, the floats that each needs, and what all share.
func (isa *laneISA) setBlocks(pl *plan, perTile, perBlock int) {
	tiles, blocks := pl.p.Heads*pl.rowTiles(pl.rows), pl.p.KVHeads*pl.keyTiles(pl.keys)
	pl.work = [2]phase{{tiles, perTile}, {blocks, perBlock}}
	pl.shared = count(float64(pl.biasSums()) + float64(tiles)*float64(isa.statsSize(pl)))
	pl.counters, pl.tables = pl.progress(blocks), 2
}

// dsStep is the distance between rows of dS: no power of two, so that the rows
// of a column do not fall on the same cache lines.
func dsStep(pl *plan) int { return pl.keys + 16 }

func (isa *laneISA) bwdTimes(pl *plan) [3]timedPhase {
	return isa.bwdPace.backward(pl.call, isa.lanes, edgeGroup, isa.cut(pl))
}

// cut returns how a planned call is cut.
func (isa *laneISA) cut(pl *plan) bwdCut {
	return bwdCut{pl.rows, pl.keys, pl.work[0].items, pl.work[1].items, isa.copies(pl) > 0}
}

// gradRun is the rows of a run of dK and dV, and the keys of a chain of one of dQ.
// Gradients of 16 bits need no runs.
const gradRun = 4096

// rowRuns reports whether dK and dV of a sequence of n query rows are summed in runs of
// them.
func (pl *plan) rowRuns(n int) bool {
	return pl.p.DType == flashkit.Float32 && n*(pl.p.Heads/max(1, pl.p.KVHeads)) > gradRun
}

func (pl *plan) gradFloats(dim, vdim int) int {
	if pl.rowRuns(pl.p.QLen) {
		return 2 * pl.keys * (dim + vdim)
	}
	return pl.keys * (dim + vdim)
}

// keyRuns reports whether dQ is summed in runs of keys.
func (pl *plan) keyRuns() bool {
	return pl.p.DType == flashkit.Float32 && mostSeen(&pl.p) > gradRun*pl.chains
}

// beginsRun reports whether a block of keys from a given one on begins a run of dQ. Runs
// are those of the block's chain.
func (pl *plan) beginsRun(from int) bool {
	const pieces = gradRun / chainKeys // of a chain
	return pl.keyRuns() && from%chainKeys == 0 && from/chainKeys/pl.chains%pieces == 0
}

func (isa *laneISA) statsSize(pl *plan) int {
	return 2*statsRows(pl) + 16 + isa.copies(pl)*copySize(pl)
}

// statsRows returns the rows of a tile, in whole lanes, of which there are stats.
func statsRows(pl *plan) int { return max(tileStep, min(pl.rows, upToTiles(pl.p.QLen))) }

// sums returns how many sums of dQ there are: one for each chain, and in runs another,
// of the runs before.
func (pl *plan) sums() int {
	if pl.keyRuns() {
		return 2 * pl.chains
	}
	return pl.chains
}

// copies returns how many sums of dQ are gathered in workspace: all but the first,
// which has dQ itself if rows of that will do.
func (isa *laneISA) copies(pl *plan) int {
	if isa.directRows(pl.p.DType, pl.p.Dim) {
		return pl.sums() - 1
	}
	return pl.sums()
}

func copySize(pl *plan) int { return pl.copied * pad(pl.p.Dim) }

func (pl *plan) maskFloats() int {
	if !pl.p.Score.Mask {
		return 0
	}
	return pl.rows
}

// featured reports whether features change scores or weights.
func (pl *plan) featured() bool {
	s := &pl.p.Score
	return s.Softcap != 0 || s.ALiBi || s.Bias || s.Dropout != 0
}

// scoreFloats returns the workspace of a gradScore.
func (pl *plan) scoreFloats(lanes int) int {
	s, floats := &pl.p.Score, 0
	if s.Bias {
		floats += pl.rows*pl.keys + pl.biasGradFloats(lanes)
	}
	if s.Softcap != 0 {
		floats += pl.rows * lanes
	}
	if s.Dropout != 0 {
		floats += pl.rows
	}
	if pl.featured() {
		floats += lanes
	}
	return floats
}
