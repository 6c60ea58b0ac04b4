package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
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

// Each trap names the single mistake that it catches.
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

// The test of a backend that a machine may lack.
func ExampleUnavailable() {
	_ = func(t *testing.T) {
		b, err := wasm.New(context.Background())
		if err != nil {
			conformance.Unavailable(t, "wasm", err) // skips the test
		}
		defer b.Close()
		conformance.Run(t, b)
	}
}

// With FLASHKIT_REQUIRE=simd/fwd_avx512,cuda/fwd_sm90 a machine may not skip these kernels.
func ExampleRequired() {
	_ = func(t *testing.T) {
		for _, name := range conformance.Required("cuda") {
			t.Log(name, "must run here")
		}
	}
}

// A kernel that ignores the causal mask is caught by a trap; the correct one is not.
func ExampleCaught() {
	var wrong, right []flashkit.Kernel
	for _, k := range simd.New().Kernels() {
		if k.Name != "simd/fwd_generic" {
			continue
		}
		right = append(right, k)
		run := k.Run
		k.Run = func(ctx context.Context, c *flashkit.Call) error {
			c.Problem.Band = flashkit.Band{}
			return run(ctx, c)
		}
		wrong = append(wrong, k)
	}
	ctx := context.Background()
	fmt.Println(conformance.Caught(ctx, right, "causal_short"), conformance.Caught(ctx, wrong, "causal_short") != nil)
	// Output: <nil> true
}

// One case on one kernel, as in a test of a new kernel.
func ExampleCase() {
	c := conformance.Traps()[0].InDType(flashkit.BFloat16)
	fmt.Println(c.FullName(), c.VectorName())
	for _, k := range simd.New().Kernels() {
		if k.Name == "simd/fwd_generic" {
			fmt.Println(c.Check(context.Background(), k))
		}
	}
	// Output:
	// causal_short-bf16 causal_short
	// <nil>
}

// The truth of a case as a file, for programs in other languages.
func ExampleCase_Vector() {
	f := conformance.Traps()[0].Vector()
	o, err := f.Require("o")
	fmt.Println(f.Metadata["problem"], o.Shape, err)
	// Output: b1-h1-g1-n3-m19-d8-f32-causal [1 1 3 8] <nil>
}

// Plain problems of many shapes. Other cases are traps, other shapes, and long ones.
func ExampleGrid() {
	cases := conformance.Grid()
	fmt.Println(len(cases), cases[0].Problem)
	// Output: 108 b4-h4-g4-n5-m5-d8-f32
}

// A kernel that passes the grid may fail at other lengths, dims and batch sizes.
func ExampleShapes() {
	fmt.Println(conformance.Shapes()[0].Name)
	// Output: b2-h3-g3-n16-m16-d64-f32-causal
}

// A sum over 65,536 keys, and another over query rows.
func ExampleLong() {
	for _, c := range conformance.Long()[:2] {
		fmt.Println(c.Name, c.Problem.QLen, c.Problem.KVLen)
	}
	// Output:
	// long_rows 4 65536
	// long_columns 65536 4
}

// A brief run of the causal cases on one kernel.
func ExampleOptions() {
	o := conformance.Options{Kernel: "simd/fwd_generic", Case: "causal_*", Brief: true}
	kernels := simd.New().Kernels()
	fmt.Println(o.Validate(), o.Count(kernels) > 0)
	fmt.Println(conformance.Options{Case: "causal_["}.Validate())
	// Output:
	// <nil> true
	// pattern "causal_[": syntax error in pattern
}

// A report: what failed, and how to run it again.
func ExampleResult() {
	r := conformance.Result{Kernel: "mine/fwd", Case: "causal_short", Catches: "a causal mask aligned to the top left", Err: errors.New("row 0 differs")}
	if r.Err != nil && !r.Unsupported() {
		fmt.Printf("%s: %v: %s\n%s\n", r.Case, r.Err, r.Catches, r.Rerun())
	}
	// Output:
	// causal_short: row 0 differs: a causal mask aligned to the top left
	// flashrun conformance --kernel mine/fwd --case causal_short
}
