package simd

import (
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// A plan splits a call into items. It follows from the call and the number of its workers.
// Run, Cost and Needs of a kernel make the same plan; only Run fills its tables.
type plan struct {
	call    *flashkit.Call
	p       flashkit.Problem // of the call
	workers int              // goroutines that the call may use
	ragged  bool             // sequences have lengths of their own

	byRow, byKey items.Table
	work         [2]pool.Phase // forward: query rows. Backward: tiles of query rows, blocks of keys. Decode: chunks, rows to merge
	shared       int           // floats of workspace that the workers share
	tables       int           // that Run fills
	rows         int           // query rows of an item, or of a tile backward

	forwardPlan
	backwardPlan
	decode   decodePlan
	portable portablePlan
}

// A forwardPlan is the part of kernels with query rows in lanes.
type forwardPlan struct {
	tilesPerItem int // query tiles, of one head
	headsPerItem int // query heads, of one tile each if they are several
	turns        int // items of neighboring heads that take turns, tile by tile
}

// A backwardPlan is the part of kernels with keys in lanes.
type backwardPlan struct {
	keys     int // keys of an item
	dqRows   int // of a sum of dQ in workspace
	chains   int // of blocks of keys, each of which adds up its own dQ
	counters int // of how far items have come
}

// A portablePlan is the part of the portable kernels.
type portablePlan struct {
	n, m       int // rows and keys of the longest sequence
	rows, keys int // of the largest tile

	// Items of a backward pass: tiles of query rows, of keys, of a DBias that repeats, and heads of DSink.
	queryItems, keyItems, biasItems, sinkItems int

	ownBias bool // an item of query rows writes their rows of DBias, padding included
}

// reset makes pl, whose tables keep their memory, the plan of a call.
func (pl *plan) reset(c *flashkit.Call) {
	pl.p, pl.call, pl.workers, pl.ragged = c.Problem, c, pool.WorkersOf(c), !equalLengths(c)
	pl.work, pl.shared, pl.tables, pl.rows = [2]pool.Phase{}, 0, 1, 0
	pl.forwardPlan, pl.backwardPlan, pl.portable = forwardPlan{headsPerItem: 1}, backwardPlan{}, portablePlan{}
	pl.decode.decodeShape = decodeShape{}
}

// planned returns the plan of a call for Cost or Needs, which must forget it.
func planned(c *flashkit.Call, make func(*plan)) *plan {
	pl := plans.Get().(*plan)
	pl.reset(c)
	make(pl)
	return pl
}

// forget gives pl back.
func (pl *plan) forget() {
	pl.call = nil
	plans.Put(pl)
}

// memory returns the bytes that a planned call needs beside its tensors: workspace, counters and tables.
func (pl *plan) memory() float64 {
	others := 0.
	if pl.decode.turns > 1 {
		others = float64(pool.Size(pl.workers, pl.work[0])) * float64(unsafe.Sizeof(otherHeads{}))
	}
	return 4*pool.Floats(pl.workers, pl.work[:]...) + 4*float64(pl.shared) + 8*float64(pl.counters) + pl.tableBytes() + others
}

// plans are kept, so that Cost and Needs allocate nothing.
var plans = sync.Pool{New: func() any { return new(plan) }}

// headGroups returns the groups of headsPerItem heads of a sequence.
func (pl *plan) headGroups() int { return ceilDiv(pl.p.Heads, pl.headsPerItem) }

// cutRows makes the table of query rows of a planned call. The last rows of a causal mask see the most keys, so
// they come first.
func (pl *plan) cutRows() {
	pl.cutTiles(&pl.byRow, true, pl.rows, items.Order{Heads: pl.headGroups(), Turns: pl.turns, LongestFirst: true, LastFirst: true})
}

// A biasKind says who shares an element of DBias.
type biasKind int

const (
	noBias   biasKind = iota // no DBias is wanted
	ownBias                  // every pair has its own
	pairBias                 // sequences or heads share one for each pair
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

// equalLengths reports whether nothing says that sequences differ in length. There may
// then be more of them than anybody could walk, as nothing backs them.
func equalLengths(c *flashkit.Call) bool {
	if c.Args == nil || c.Args.Seqs == nil {
		return true
	}
	s := c.Args.Seqs
	return s.QLens == nil && s.QStarts == nil && s.KVLens == nil && s.KVStarts == nil
}
