package conformance

import (
	"fmt"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// Kernels keep the scores and weights of a tile in workspace, in panels of, say, 16 or 64 keys. If
// a mask hides a panel's keys from all rows of a tile, a kernel may skip the panel. The kernel must
// then not use data that the previous tile left in the panel's workspace. The masks of the traps
// hide single pairs of a row and a key, or whole tiles. The masks below hide blocks of other sizes,
// sometimes the first block.
var leftCases = []struct {
	name, catches, problem string

	fill func(in *Inputs)
}{
	{"left_of_keys", "what a tile left in workspace used for keys that a mask hides from all rows",
		"b1-h2-g1-n37-m330-d8-f32-mask", showPairs(showKeys)},
	{"left_of_rows", "what a tile left in workspace used for rows from which a mask hides a block of keys",
		"b1-h2-g1-n147-m150-d8-f32-mask", showPairs(func(i, j int) bool { return (j/(16<<(i/64))+i/64)%2 == 1 })},
	{"left_of_softcap", "the slope of a softcap at a hidden score of NaN used",
		"b1-h2-g1-n37-m330-d8-f32-softcap5-mask", all(once(1), once(2), showPairs(showKeys), nanBehindMask)},
}

// showKeys reports whether a mask shows key j. Between the shown keys, the mask hides whole panels
// of 16, 32 and 64 keys.
func showKeys(_, j int) bool {
	for _, run := range [...][2]int{{16, 24}, {64, 80}, {96, 100}, {192, 200}, {256, 320}} {
		if run[0] <= j && j < run[1] {
			return true
		}
	}
	return false
}

// showPairs returns a function that sets the mask: row i sees key j if shown(i, j) is true.
func showPairs(shown func(i, j int) bool) func(in *Inputs) {
	return func(in *Inputs) {
		in.mask.eachPair(func(i, j int, x *float32) {
			if *x = 0; shown(i, j) {
				*x = 1
			}
		})
	}
}

// leftovers returns the cases of leftCases. Their results and bounds are computed once for all
// kernels.
var leftovers = sync.OnceValue(func() (cases []Case) {
	for _, t := range leftCases {
		p, err := flashkit.ParseProblem(t.problem)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", t.name, err)) // a typing error in the table
		}
		c := Case{Name: t.name, Catches: t.catches, Problem: p, fill: t.fill}
		c.answers(vectorBounds)
		cases = append(cases, c)
	}
	return cases
})
