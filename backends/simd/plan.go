package simd

import (
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// plan splits a call into items, from the call and its number of workers. A kernel's Run, Cost and
// Needs make the same plan; only Run fills its tables.
type plan struct {
	call    *flashkit.Call
	p       flashkit.Problem // of the call
	workers int              // goroutines that the call may use
	ragged  bool             // sequences differ in length

	byRow, byKey items.Table
	work         [2]pool.Phase // forward: query rows. Backward: tiles of query rows, blocks of keys. Decode: chunks, rows to merge
	shared       int           // floats of workspace that the workers share
	tables       int           // tables that Run fills
	rows         int           // query rows of an item, or of a tile backward

	forwardPlan
	backwardPlan
	decode   decodePlan
	portable portablePlan
}

// forwardPlan is the plan of kernels with query rows in lanes.
type forwardPlan struct {
	tilesPerItem int // query tiles, of one head
	headsPerItem int // query heads, of one tile each if they are several
	turns        int // items of neighboring heads that take turns, tile by tile
}

// backwardPlan is the plan of kernels with keys in lanes.
type backwardPlan struct {
	keys     int // keys of an item
	dqRows   int // rows of a workspace sum of dQ
	chains   int // chains of key blocks, each with its own sum of dQ
	counters int // progress counters of items
}

// portablePlan is the plan of the portable kernels.
type portablePlan struct {
	n, m       int // rows and keys of the longest sequence
	rows, keys int // of the largest tile

	// Items of a backward pass: tiles of query rows, of keys, of a repeated DBias, and heads of
	// DSink.
	queryItems, keyItems, biasItems, sinkItems int

	ownBias bool // an item of query rows writes their rows of DBias, padding included
}

// reset makes pl the plan of a call. Its tables keep their memory.
func (pl *plan) reset(c *flashkit.Call) {
	pl.p, pl.call, pl.workers, pl.ragged = c.Problem, c, pool.WorkersOf(c), !equalLengths(c)
	pl.work, pl.shared, pl.tables, pl.rows = [2]pool.Phase{}, 0, 1, 0
	pl.forwardPlan, pl.backwardPlan, pl.portable = forwardPlan{headsPerItem: 1}, backwardPlan{}, portablePlan{}
	pl.decode.decodeShape = decodeShape{}
}

// planned returns the plan of a call for Cost or Needs, which must call forget.
func planned(c *flashkit.Call, make func(*plan)) *plan {
	pl := plans.Get().(*plan)
	pl.reset(c)
	make(pl)
	return pl
}

func (pl *plan) forget() {
	pl.call = nil
	plans.Put(pl)
}

// memory returns the bytes that a planned call needs in addition to its tensors: workspace,
// counters and tables.
func (pl *plan) memory() float64 {
	others := 0.
	if pl.decode.turns > 1 {
		others = float64(pool.Size(pl.workers, pl.work[0])) * float64(unsafe.Sizeof(otherHeads{}))
	}
	return 4*pool.Floats(pl.workers, pl.work[:]...) + 4*float64(pl.shared) + 8*float64(pl.counters) + pl.tableBytes() + others
}

// plans pools plans, so that Cost and Needs do not allocate.
var plans = sync.Pool{New: func() any { return new(plan) }}

// headGroups returns the groups of headsPerItem heads in a sequence.
func (pl *plan) headGroups() int { return ceilDiv(pl.p.Heads, pl.headsPerItem) }

// cutRows fills the table of query rows. The last rows come first: under a causal mask they see the
// most keys.
func (pl *plan) cutRows() {
	pl.cutTiles(&pl.byRow, true, pl.rows, items.Order{Heads: pl.headGroups(), Turns: pl.turns, LongestFirst: true, LastFirst: true})
}

// biasKind tells which pairs share an element of DBias.
type biasKind int

const (
	noBias   biasKind = iota // DBias is not requested
	ownBias                  // each pair has its own
	pairBias                 // sequences or heads share one per pair
	rowBias                  // all query rows share one
)

// biasKind returns the kind of the call's DBias: noBias without arguments.
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

// equalLengths reports whether the call gives no lengths or starts of sequences. Then no array
// bounds the batch: do not loop over it.
func equalLengths(c *flashkit.Call) bool {
	if c.Args == nil || c.Args.Seqs == nil {
		return true
	}
	s := c.Args.Seqs
	return s.QLens == nil && s.QStarts == nil && s.KVLens == nil && s.KVStarts == nil
}
