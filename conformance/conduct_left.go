package conformance

import (
	"fmt"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// Kernels keep scores and weights of a tile in workspace, panel by panel. Where a mask hides a whole panel from
// the rows at hand, a kernel that computes nothing for it must not use what the tile before left
// there. Masks of the traps hide single pairs, or whole tiles. The masks here hide blocks of any size, in an
// order in which the first block is hidden as well as later ones.
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

// showKeys shows runs of keys, and hides panels of 16, 32 and 64 keys between them.
func showKeys(_, j int) bool {
	for _, run := range [...][2]int{{16, 24}, {64, 80}, {96, 100}, {192, 200}, {256, 320}} {
		if run[0] <= j && j < run[1] {
			return true
		}
	}
	return false
}

// showPairs makes a mask of the pairs that are shown.
func showPairs(shown func(i, j int) bool) func(in *Inputs) {
	return func(in *Inputs) {
		in.mask.eachPair(func(i, j int, x *float32) {
			if *x = 0; shown(i, j) {
				*x = 1
			}
		})
	}
}

// leftovers are those cases, with results and bounds that are computed once for all kernels.
var leftovers = sync.OnceValue(func() (cases []Case) {
	for _, t := range leftCases {
		p, err := flashkit.ParseProblem(t.problem)
		if err != nil {
			panic(fmt.Sprintf("%s: %v", t.name, err)) // a typing mistake in the table
		}
		c := Case{Name: t.name, Catches: t.catches, Problem: p, fill: t.fill}
		c.answers(vectorBounds)
		cases = append(cases, c)
	}
	return cases
})
