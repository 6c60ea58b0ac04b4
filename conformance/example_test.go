package conformance_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/conformance"
)

// A backend joins with a test of one line.
func ExampleRun() {
	_ = func(t *testing.T) { conformance.Run(t, simd.New()) }
}

// Results needs no testing package: flashrun conformance prints its results.
func ExampleResults() {
	passed := 0
	only := conformance.Options{Kernel: "simd/*_generic", Case: "gqa_*"}
	for r := range conformance.Results(context.Background(), simd.New().Kernels(), only) {
		if r.Err != nil {
			fmt.Println(r.Kernel, r.Case, r.Err, "rerun:", r.Rerun())
			continue
		}
		passed++
	}
	fmt.Println(passed, "passed")
	// Output: 110 passed
}

func ExampleTraps() {
	for _, c := range conformance.Traps()[:2] {
		fmt.Printf("%s: %s\n", c.Name, c.Catches)
	}
	fmt.Println(len(conformance.Grid()), "grid problems")
	// Output:
	// causal_short: a causal mask aligned to the top left when N < M
	// causal_one_taller: a first row that is given a key when N = M+1
	// 108 grid problems
}
