package oracle_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// One row with two equal scores: O is the mean of V, LSE is ln 2, and a
// gradient of O flows in equal parts to both values.
func Example() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 1, VDim: 1}
	in := oracle.Inputs{Q: []float64{0}, K: []float64{3, 4}, V: []float64{10, 20}, DO: []float64{1}}
	o, lse := oracle.Forward(p, in)
	g := oracle.Backward(p, in)
	fmt.Printf("%g %.4f\n", o, lse)
	fmt.Println(g.DQ, g.DK, g.DV)
	// Output:
	// [15] [0.6931]
	// [2.5] [0 0] [0.5 0.5]
}
