package simd

import "github.com/flashkit-go/flashkit"

// A plan splits a call into items. It follows from the call and the number of its workers.
// Run, Cost and Needs of a kernel make the same plan; only Run fills the tables.
type plan struct {
	p            flashkit.Problem
	call         *flashkit.Call // of the problem
	workers      int            // goroutines that the call may use
	ragged       bool           // sequences have lengths of their own
	byRow, byKey itemTable
	forwardPlan
	backwardPlan
	decode   decodePlan
	features portablePlan
}

// A forwardPlan is the part of kernels with query rows in lanes.
type forwardPlan struct {
	group  int // query tiles of an item
	heads  int // query heads, or groups of joined ones, whose items take turns
	joined int // query heads of an item
}

// A backwardPlan is the part of kernels with keys in lanes.
type backwardPlan struct {
	rows   int // query rows of a tile
	keys   int // keys of an item
	copied int // rows of a sum of dQ in workspace
	chains int // of blocks of keys, each of which adds up its own dQ
}

// newPlan returns the plan of a call before a kernel has cut it, with the workers that it
// would have now.
func newPlan(c *flashkit.Call) *plan {
	pl := new(plan)
	pl.reset(c)
	return pl
}

// reset makes pl, whose tables keep their memory, the plan of a call.
func (pl *plan) reset(c *flashkit.Call) {
	pl.p, pl.call, pl.workers, pl.ragged = c.Problem, c, workersOf(c), !equalLengths(c)
	pl.forwardPlan, pl.backwardPlan, pl.features = forwardPlan{joined: 1}, backwardPlan{}, portablePlan{}
}
