package conformance

import (
	"sync"

	"github.com/flashkit-go/flashkit"
)

// The grid's lengths are odd, and the grid's heads repeat the few heads of a golden vector. The
// problems below have lengths that are powers of two, unequal numbers of rows and keys, and heads
// that all differ. They have no golden vectors: the oracle computes the results during the test.
var shapes = []string{
	"b2-h3-g3-n16-m16-d64-f32-causal",
	"b1-h6-g2-n16-m32-d32-f32",
	"b1-h4-g1-n32-m16-d40-f32-causal-topleft",
	"b2-h4-g2-n32-m32-d64-f32",
	"b1-h3-g3-n32-m128-d80-f32-causal",
	"b1-h4-g2-n64-m64-d64-f32-causal",
	"b1-h2-g2-n64-m32-d128-f32",
	"b1-h5-g1-n1-m64-d64-f32",
	"b1-h8-g2-n2-m128-d128-f32-causal",
	"b1-h2-g1-n128-m64-d32-f32-window31.0",
	"b1-h2-g2-n128-m128-d64-dv32-f32-causal",
}

// Shapes returns the cases of shapes. Their inputs are noise.
func Shapes() []Case { return append([]Case(nil), shaped()...) }

// shaped returns the cases, computed once. All kernels share their results and bounds.
var shaped = sync.OnceValue(func() (cases []Case) {
	for _, name := range shapes {
		p, err := flashkit.ParseProblem(name)
		if err != nil {
			panic("shape " + name + ": " + err.Error()) // a typing error in the table
		}
		c := Case{Name: name, Problem: p}
		c.answers(vectorBounds)
		cases = append(cases, c)
	}
	return cases
})
