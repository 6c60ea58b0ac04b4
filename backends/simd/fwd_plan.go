//go:build (amd64 || arm64) && !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

const (
	itemRows       = 256 // query rows of an item
	maxTiles       = 16  // tiles of an item
	itemsPerWorker = 8
)

// planForward plans a call of fwd_avx512, fwd_avx2 or fwd_neon. An item may consist of several
// heads if the heads are short.
func (isa *laneRoutines) planForward(pl *plan) {
	isa.stackHeads(pl)
	isa.planRows(pl, itemRows)
	if n := isa.joinedHeads(pl); n > 1 {
		pl.planHeads(isa.lanes, n)
		pl.apart = true
	}
	p := &pl.p
	dims, widest, keys := pad(p.Dim)+pad(p.VDim), max(pad(p.Dim), pad(p.VDim)), isa.blockKeys(pl)
	pl.shared = pl.massFloats()
	perTile := isa.lanes*pad(p.Dim) + pl.massFloatsOfTile(isa.lanes) + pl.sumFloats(isa.lanes, pad(p.VDim), isa.keys)
	pl.setItems(perTile, keys*(isa.lanes+1+dims)+isa.lanes*(widest+3)+pl.featureFloats(isa.lanes, keys)+pl.massFloatsOfItem(isa.lanes))
}

// blockKeys returns the largest number of keys of a block.
func (isa *laneRoutines) blockKeys(pl *plan) int {
	if pl.p.KVLen <= isa.keys {
		return isa.keys
	}
	return isa.mostOneBlock()
}

// mostOneBlock returns the largest number of keys of a sequence that is one block.
func (isa *laneRoutines) mostOneBlock() int { return max(isa.keys, isa.oneBlock) }

// planRows sets the number of tiles per item so that each worker gets itemsPerWorker items, or
// fewer if the call is small. An item has at most the given number of query rows, and with KeyMass always
// this number, because sums of other items have other bits.
func (isa *laneRoutines) planRows(pl *plan, rows int) {
	pl.tilesPerItem = max(1, min(rows/isa.lanes, ceilDiv(pl.p.QLen*pl.fold, isa.lanes), pl.headGroups()*pl.rowTiles(isa.lanes)/(itemsPerWorker*pl.workers)))
	if pl.p.KeyMass {
		pl.tilesPerItem = rows / isa.lanes
	}
	pl.planHeads(isa.lanes, 1)
}

// planHeads sets pl.turns, the number of heads in a group of neighboring heads. All items of a
// group run before the items of the next group. In a group, the items of different heads alternate,
// and long items come first. Groups are small so that their keys stay in cache, but large enough to
// give each worker several items.
func (pl *plan) planHeads(lanes, headsPerItem int) {
	pl.headsPerItem, pl.rows = headsPerItem, pl.tilesPerItem*lanes
	heads := pl.headGroups() * pl.alike()
	wanted := ceilDiv(itemsPerWorker*pl.workers, max(1, ceilDiv(pl.p.QLen*pl.fold, pl.rows)))
	pl.turns = ceilDiv(heads, max(1, heads/wanted)) // in equal groups: a last group of one head would leave workers idle
}

func (pl *plan) setItems(perTile, perItem int) {
	pl.work[0] = pool.Phase{Items: pl.headGroups() * pl.rowTiles(pl.rows), Floats: pl.tilesPerItem*perTile + perItem}
}

// joinedHeads returns the number of heads per item. It is more than 1 only if each head has one
// tile of query rows and one block of keys. Beginning an item takes about as long as computing such
// a head.
func (isa *laneRoutines) joinedHeads(pl *plan) int {
	const itemsPerWorker = 32
	p := &pl.p
	if isa.attendTile == nil || pl.tilesPerItem > 1 || p.QLen > isa.lanes || p.KVLen > isa.mostOneBlock() {
		return 1
	}
	heads := p.Heads
	if pl.workers > 1 {
		heads = max(1, min(heads, heads*pl.rowTiles(isa.lanes)/(itemsPerWorker*pl.workers)))
	}
	return ceilDiv(p.Heads, max(1, ceilDiv(p.Heads, max(1, heads)))) // so that all items have about the same number of heads
}

// takesWhole reports whether attendTile computes tiles of the call. If the lanes do not divide VDim,
// attendTile computes some columns twice, which costs more than it saves where keys are many.
func (isa *laneRoutines) takesWhole(pl *plan) bool {
	const fewKeys = 128
	return isa.attendTile != nil && !pl.p.KeyMass && isa.onePart(pl) && (pl.p.VDim%isa.lanes == 0 || pl.p.KVLen <= fewKeys)
}

// onePart reports whether attendTile supports the call, where it exists. The separate routines then
// also compute a tile in one part, if its keys are in one block.
func (isa *laneRoutines) onePart(pl *plan) bool {
	other := pl.p.Score // the features that attendTile does not support
	other.Bias, other.Mask = false, false
	return pl.p.VDim >= isa.lanes && other == (flashkit.Score{}) && !pl.p.Carry
}

func (isa *laneRoutines) fwdTimes(pl *plan) [3]timedPhase {
	c := isa.adapted(isa.paceOf(pl))
	return c.forward(pl, isa.lanes, 1, itemRows)
}

// paceOf returns the pace of a forward pass. It returns shortPace if the problem alone shows that
// attendTile computes all tiles.
func (isa *laneRoutines) paceOf(pl *plan) *pace {
	p := &pl.p
	oneBlock := p.KVLen <= isa.mostOneBlock() || !pl.ragged && touchedKeys(p, isa.keys) <= isa.keys
	if isa.takesWhole(pl) && oneBlock && !masksPairs(pl.call) {
		return &isa.shortPace
	}
	return &isa.fwdPace
}

// masksPairs reports whether the call has a mask that differs between query rows.
func masksPairs(c *flashkit.Call) bool {
	return c.Score.Mask && !repeats(c, flashkit.FeatureMask)
}

const runBlocks = 32 // blocks of keys in a run, which has its own float32 sums: see keySum

// runKeys returns the number of keys of a run, which has its own float32 sums. It returns 0 if one
// run has all keys. block is the number of keys of a block.
func (pl *plan) runKeys(block int) int {
	if n := runBlocks * block; pl.p.KVLen > n {
		return n
	}
	return 0
}

func (pl *plan) sumFloats(lanes, vdim, block int) int {
	if pl.runKeys(block) == 0 {
		return lanes * (vdim + 2)
	}
	return 2 * lanes * (vdim + 2)
}
