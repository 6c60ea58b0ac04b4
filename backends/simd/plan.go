package simd

import "github.com/flashkit-go/flashkit"

// A plan is how a call is cut into items. It follows from the problem and the number of
// workers; what a call takes and needs, and how it runs, are read from the same plan.
type plan struct {
	p       flashkit.Problem
	call    *flashkit.Call // of the problem; nil is one of equal lengths
	workers int            // goroutines that the call may use
	bySpan  [2]spanTable   // the tiles of query rows, and those of keys
	group   int            // query tiles of an item, where a kernel takes several
	heads   int            // query heads, or groups of joined ones, whose items take turns, where a kernel limits them
	joined  int            // query heads of an item
	rows    int            // query rows of a tile, where a kernel chooses
	keys    int            // keys of an item, likewise
	copied  int            // rows of a sum of dQ in workspace
	chains  int            // of blocks of keys, each of which adds up its own dQ
}

// newPlan returns the plan of a call before a kernel has cut it, with the workers that it
// would have now.
func newPlan(c *flashkit.Call) *plan { return &plan{p: c.Problem, call: c, workers: workersOf(c)} }
