package simd

import (
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// plan is the partition of a call into items. It depends on the call and the number of workers. A
// kernel's Run, Cost and Needs make the same plan, but only Run fills the tables byRow and byKey.
type plan struct {
	call    *flashkit.Call
	p       flashkit.Problem // problem of the call
	workers int              // goroutines that the call may use
	ragged  bool             // the call gives lengths or starts of sequences

	byRow, byKey items.Table
	work         [2]pool.Phase // items of each phase. Forward: query rows. Backward: tiles of query rows, then blocks of keys. Decode: chunks, then rows to merge
	shared       int           // floats of workspace that the workers share
	tables       int           // tables that Run fills
	apart        bool          // no two items read the same rows, so workers have shares of the items
	rows         int           // query rows of an item; in a backward pass, of a tile

	forwardPlan
	backwardPlan
	stacked  stackedCall
	decode   decodePlan
	portable portablePlan
}

// forwardPlan is the plan of kernels with query rows in lanes.
type forwardPlan struct {
	tilesPerItem int // tiles of query rows, all of one head
	headsPerItem int // query heads; if more than one, each has a single tile
	fold         int // query heads whose rows share the tiles, see foldHeads
	turns        int // neighboring heads whose items alternate, tile by tile
}

// backwardPlan is the plan of kernels with keys in lanes.
type backwardPlan struct {
	keys     int  // keys of an item
	dqRows   int  // rows of one tile's sum of dQ in workspace
	dqStep   int  // distance between these rows
	chains   int  // chains of key blocks per head; each chain has its own sum of dQ
	counters int  // progress counters of items
	joined   bool // an item of keys also prepares and finishes all tiles of its heads
	part     int  // few keys: floats of a chunk's sums of dK and dV, padded to whole vectors
}

// portablePlan is the plan of the portable kernels.
type portablePlan struct {
	n, m       int // most query rows, and most keys, of any sequence
	rows, keys int // query rows and keys of the largest tile

	// Numbers of items of a backward pass: tiles of query rows, tiles of keys, tiles of a DBias
	// with shared elements, and heads of DSink.
	queryItems, keyItems, biasItems, sinkItems int

	ownBias bool // an item of query rows writes its own rows of DBias, padding included
}

// reset prepares pl for the plan of a call. The tables keep their memory.
func (pl *plan) reset(c *flashkit.Call) {
	pl.p, pl.call, pl.workers, pl.ragged = c.Problem, c, pool.WorkersOf(c), !equalLengths(c)
	pl.work, pl.shared, pl.tables, pl.apart, pl.rows = [2]pool.Phase{}, 0, 1, false, 0
	pl.forwardPlan, pl.backwardPlan, pl.portable = forwardPlan{headsPerItem: 1, fold: 1}, backwardPlan{}, portablePlan{}
	pl.decode.decodeShape, pl.decode.short = decodeShape{}, false
}

// planned returns the plan of a call for Cost or Needs. The caller must call forget in the end.
func planned(c *flashkit.Call, make func(*plan)) *plan {
	pl := plans.Get().(*plan)
	pl.reset(c)
	make(pl)
	return pl
}

func (pl *plan) forget() {
	pl.unstack()
	pl.call = nil
	plans.Put(pl)
}

// memory returns the bytes that a planned call needs in addition to its tensors: workspace,
// counters and tables.
func (pl *plan) memory() float64 {
	others := 0.
	if pl.takesTurns() {
		others = float64(pool.Size(pl.workers, pl.work[0])) * float64(unsafe.Sizeof(otherHeads{}))
	}
	return 4*pool.Floats(pl.workers, pl.work[:]...) + 4*float64(pl.shared) + 8*float64(pl.counters) + pl.tableBytes() + others
}

// stackedCall is a call whose heads are the KV heads of the plan's call. Each head has the query rows of a
// whole group, head by head. If all rows see the same keys, the results are the same.
type stackedCall struct {
	call flashkit.Call
	args flashkit.Args
}

// unstack forgets the stacked call, whose tensors would keep memory alive.
func (pl *plan) unstack() {
	if pl.stacked.call.Heads != 0 {
		pl.stacked = stackedCall{}
	}
}

// plans is a pool of plans, so that Cost and Needs do not allocate.
var plans = sync.Pool{New: func() any { return new(plan) }}

// headGroups returns the number of groups of headsPerItem heads in a sequence. Folded heads count as
// one head.
func (pl *plan) headGroups() int { return ceilDiv(pl.p.Heads, pl.headsPerItem*pl.fold) }

// cutRows fills the table of query rows. Items of the last rows come first, because these rows see
// the most keys under a causal mask.
func (pl *plan) cutRows() {
	pl.cutTiles(&pl.byRow, true, pl.rows, items.Order{Heads: pl.headGroups(), Turns: pl.turns, LongestFirst: true, LastFirst: true})
}

// biasKind tells which pairs share an element of DBias.
type biasKind int

const (
	noBias   biasKind = iota // DBias is not requested
	ownBias                  // each pair has its own element
	pairBias                 // sequences or heads share elements, but query rows do not
	rowBias                  // all query rows share the element of a key
)

// biasKind returns the kind of the call's DBias, or noBias if the call has no arguments.
func (pl *plan) biasKind() biasKind {
	if pl.call.Args == nil || !pl.p.Score.Bias || pl.call.Args.DBias.IsZero() {
		return noBias
	}
	switch p, s := &pl.p, pl.call.Args.DBias.Shape(); {
	case s == [4]int{p.Batch, p.Heads, p.QLen, p.KVLen}:
		return ownBias
	case s[2] == 1:
		return rowBias
	}
	return pairBias
}

// equalLengths reports whether the call has neither lengths nor starts of sequences. The batch size
// of such a call may be huge, since no array backs it: do not loop over the batch.
func equalLengths(c *flashkit.Call) bool {
	if c.Args == nil || c.Args.Seqs == nil {
		return true
	}
	s := c.Args.Seqs
	return s.QLens == nil && s.QStarts == nil && s.KVLens == nil && s.KVStarts == nil
}

// takesTurns reports whether the heads of an item take turns after each block.
func (pl *plan) takesTurns() bool { return pl.decode.turns > 1 && !pl.decode.short }
