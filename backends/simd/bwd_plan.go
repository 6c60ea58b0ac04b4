//go:build (amd64 || arm64) && !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

const (
	bwdRows   = 128 // query rows of a tile: many, since each tile loads and stores the sums of dK and dV
	bwdNarrow = 64  // largest head dim at which Q and dO of bwdRows rows fit in the cache, with dK and dV; above it, tiles have half the rows
	bwdBlockK = 128 // keys of a block: their dK and dV stay in L2
	minBlockK = 64
	chainKeys = 512 // neighboring keys whose blocks belong to one chain
	minChains = 4   // fewest chains that all heads of a sequence have together
	edgeGroup = 8   // rows of a register tile, masked together at an edge of the band
)

func (isa *laneRoutines) planBackward(pl *plan) {
	isa.planLanes(pl)
	dim, vdim := pad(pl.p.Dim), pad(pl.p.VDim)
	isa.setBlocks(pl, isa.lanes*(2*vdim+max(dim, vdim)+1),
		pl.gradFloats(dim, vdim)+pl.maskedFloats(dim, vdim)+pl.scoreFloats(isa.lanes)+pl.keys*(2*dim+vdim)+pl.rows*(dim+vdim)+isa.lanes*max(dim, vdim)+pl.rows*(2*isa.lanes+dsStep(pl)+1)+isa.lanes)
}

// planLanes plans blocks for vector products.
func (isa *laneRoutines) planLanes(pl *plan) {
	rows := bwdRows
	if max(pl.p.Dim, pl.p.VDim) > bwdNarrow {
		rows /= 2
	}
	pl.planBlocks(rows, bwdBlockK, minBlockK)
	if one := bwdBlockK + minBlockK; pl.keys == bwdBlockK && pl.keys < pl.p.KVLen && pl.p.KVLen <= one {
		if heads := pl.p.KVHeads * pl.p.Batch; pl.workers == 1 || !pl.ragged && pl.balances(heads) {
			pl.keys = one // one block instead of a whole one and a small one
		}
	}
	pl.dqRows, pl.dqStep = min(pl.rows, pl.p.QLen), isa.width(pl.p.Dim) // vector products need no padding rows
}

// planBlocks sets the rows of a tile, the keys of a block and the number of chains. The number of
// keys of a block is the largest of 2*keys, keys, keys/2, ..., least that keeps the workers busy.
//
// Large blocks read Q and dO and update dQ less often, and they read longer rows of a bias. So
// 2*keys is tried only with a bias, or if Q, dO and dQ of a head exceed L2. Small blocks balance
// better.
//
// The bits do not depend on the size of blocks, because every sum adds a fixed number of keys at a
// time, in order. This number is the argument least. The bits do not depend on the number of
// workers, because the chains do not depend on it.
func (pl *plan) planBlocks(rows, keys, least int) {
	const cache = 1 << 20
	p := &pl.p
	pl.rows, pl.keys, pl.dqRows, pl.dqStep = rows, keys, rows, pad(p.Dim)
	pl.chains = max(1, min(minChains/max(1, p.Heads), ceilDiv(mostSeen(p), chainKeys)))
	if p.Score.Bias || 4*float64(p.QLen)*(2*float64(p.Dim)+float64(p.VDim)) > cache {
		pl.keys *= 2
	}
	for pl.workers > 1 && pl.keys > least && !pl.balances(pl.evenBlocks(pl.keys)) {
		pl.keys /= 2
	}
}

// evenBlocks returns the total work in units of the longest block.
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

// balances reports whether blocks keep the workers busy for nine tenths of the time. Workers may
// differ in speed, so there must be four blocks per worker. Without a band, all blocks of equal
// sequences take the same time, so the last round of blocks must be nearly full, too.
func (pl *plan) balances(blocks int) bool {
	whole := 10*blocks >= 9*pl.workers*ceilDiv(blocks, pl.workers)
	return blocks >= 4*pl.workers && (whole || pl.ragged || pl.p.Band != (flashkit.Band{}))
}

// mostSeen returns the most keys that a row sees.
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

func (isa *laneRoutines) setBlocks(pl *plan, perTile, perBlock int) {
	tiles, blocks := pl.p.Heads*pl.rowTiles(pl.rows), pl.p.KVHeads*pl.keyTiles(pl.keys)
	if pl.joined = pl.joins(blocks); pl.joined {
		perBlock = max(perBlock, perTile)
	}
	pl.work = [2]pool.Phase{{Items: tiles, Floats: perTile}, {Items: blocks, Floats: perBlock}}
	pl.shared = count(float64(pl.biasSums()) + float64(tiles)*float64(isa.statsSize(pl)))
	pl.counters, pl.tables = pl.counterCount(blocks), 2
}

// joins reports whether each KV head has one block of keys, and there are enough blocks to keep the
// workers busy.
func (pl *plan) joins(blocks int) bool {
	return pl.p.KVLen <= pl.keys && blocks == pl.p.KVHeads*pl.p.Batch && (pl.workers == 1 || blocks >= 4*pl.workers)
}

func (pl *plan) cutBlocks() {
	pl.cutTiles(&pl.byRow, true, pl.rows, items.Order{Heads: pl.p.Heads, Turns: 1})
	pl.cutTiles(&pl.byKey, false, pl.keys, items.Order{Heads: pl.p.KVHeads, LongestFirst: true})
}

func (isa *laneRoutines) bwdTimes(pl *plan) [3]timedPhase {
	c := isa.adapted(&isa.bwdPace)
	return c.backward(pl.call, isa.lanes, edgeGroup, isa.cut(pl))
}

func (isa *laneRoutines) cut(pl *plan) bwdCut {
	return bwdCut{pl.rows, pl.keys, pl.work[0].Items, pl.work[1].Items, isa.copies(pl) > 0}
}

// keyRange is the keys of one item.
type keyRange struct {
	seqTile
	predecessor int // the previous item of the chain, for the current head; negative: none
}

// visited returns the index of the first tile of query rows that sees a key of block x. It also
// returns the index of the last such tile, plus 1. If there is no such tile, it returns 0, 0.
func (pl *plan) visited(x *seqTile) (first, end int) {
	lo, hi := x.rowsSeen()
	if lo >= hi {
		return 0, 0
	}
	return lo / pl.rows, (hi-1)/pl.rows + 1
}

// after returns the head and tile that follow tile t of head h in a block, if any.
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

// chain returns the chain of a block of keys. Ranges of chainKeys keys are dealt to the chains in
// turn.
func (pl *plan) chain(x *keyRange) int { return x.from / chainKeys % pl.chains }

// predecessor returns the item of the previous block in the chain of block x, or a negative number.
func (pl *plan) predecessor(x *keyRange, item int) int {
	back := pl.keys
	if x.from%chainKeys == 0 { // skip the keys of the other chains
		back += (pl.chains - 1) * chainKeys
	}
	if x.from < back {
		return -1
	}
	return item - back/pl.keys*pl.byKey.Span(item).Turns // in item order, the blocks of all heads of the span for the same keys come before the blocks of the next keys
}

// Long sums are split into runs, to limit rounding errors: the sums of finished runs are added
// separately. gradRun is the length of a run, in query rows for dK and dV, and in keys of a chain
// for dQ. Gradients of 16 bits need no runs, because rounding them to 16 bits causes a larger error
// than a long float32 sum.
const gradRun = 4096

// rowRuns reports whether dK and dV of a sequence of n query rows are summed in runs of rows.
func (pl *plan) rowRuns(n int) bool {
	return pl.p.DType == flashkit.Float32 && n*(pl.p.Heads/max(1, pl.p.KVHeads)) > gradRun
}

// keyRuns reports whether dQ is summed in runs of keys.
func (pl *plan) keyRuns() bool {
	return pl.p.DType == flashkit.Float32 && mostSeen(&pl.p) > gradRun*pl.chains
}

// beginsRun reports whether a block begins a run of dQ, a float32 partial sum of gradRun keys of
// the block's chain. from is the first key of the block.
func (pl *plan) beginsRun(from int) bool {
	const pieces = gradRun / chainKeys // of a chain
	return pl.keyRuns() && from%chainKeys == 0 && from/chainKeys/pl.chains%pieces == 0
}

// sums returns the number of sums of dQ. Each chain has one sum. If dQ is summed in runs of keys,
// each chain also has a sum of its finished runs.
func (pl *plan) sums() int {
	if pl.keyRuns() {
		return 2 * pl.chains
	}
	return pl.chains
}

// copies returns the number of sums of dQ in workspace: all, or all but the first if the tensor dQ
// can hold the first sum.
func (isa *laneRoutines) copies(pl *plan) int {
	if isa.directRows(pl.p.DType, pl.p.Dim) {
		return pl.sums() - 1
	}
	return pl.sums()
}

func (isa *laneRoutines) statsSize(pl *plan) int {
	return 2*statsRows(pl) + 16 + isa.copies(pl)*copySize(pl)
}

func statsRows(pl *plan) int { return max(tileStep, min(pl.rows, upToTiles(pl.p.QLen))) }

// copySize returns the floats of a tile's sum of dQ in workspace.
func copySize(pl *plan) int { return pl.dqRows * pl.dqStep }

// dsStep is the distance between rows of dS. It is not a power of two: at such a distance, rows
// would compete for the same cache sets.
func dsStep(pl *plan) int { return pl.keys + 16 }

func (pl *plan) gradFloats(dim, vdim int) int {
	if pl.rowRuns(pl.p.QLen) {
		return 2 * pl.keys * (dim + vdim)
	}
	return pl.keys * (dim + vdim)
}

// maskedFloats returns the workspace that a mask adds to a block.
func (pl *plan) maskedFloats(dim, vdim int) int {
	if !pl.hidesByRow() {
		return 0
	}
	return pl.maskFloats() + pl.rows*(dim+vdim) + max(dim, vdim)
}

func (pl *plan) maskFloats() int {
	if !pl.p.Score.Mask {
		return 0
	}
	return pl.rows
}

func (pl *plan) featured() bool { return adjusts(pl.call) || pl.p.Score.Dropout != 0 }

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
