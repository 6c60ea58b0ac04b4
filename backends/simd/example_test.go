package simd_test

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// The portable kernels support every problem. Package dispatch chooses among all kernels.
func ExampleNew() {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 128, KVLen: 128, Dim: 64, VDim: 64, DType: flashkit.BFloat16}
	for _, k := range simd.New().Kernels() {
		if k.Name == "simd/fwd_generic" || k.Name == "simd/bwd_generic" {
			fmt.Println(k.Name, k.Pass, k.Fits(p.Ask(k.Pass)) == "")
		}
	}
	// Output:
	// simd/fwd_generic forward true
	// simd/bwd_generic backward true
}

// A program needs only one backend, whose goroutines sleep between calls.
func ExampleBackend() {
	b := simd.New()
	defer b.Close()
	fmt.Println(b.Name(), b.BatchInvariant()) // a sequence has the same bits in every batch
	// Output: simd true
}

// A server limits the goroutines of a call, to leave processors to other work. Results do not
// depend on the limit.
func ExampleWorkers() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 1, VDim: 1}
	b := simd.New(simd.Workers(2))
	defer b.Close()
	o := flashkit.F32(make([]float32, 1), 1, 1, 1, 1)
	args := &flashkit.Args{
		Q: flashkit.F32([]float32{0}, 1, 1, 1, 1),
		K: flashkit.F32([]float32{1, 2}, 1, 1, 2, 1),
		V: flashkit.F32([]float32{4, 8}, 1, 1, 2, 1),
		O: o,
	}
	for _, k := range b.Kernels() {
		if k.Name == "simd/fwd_generic" {
			fmt.Println(k.Compute(context.Background(), p, args), o.Float32s())
		}
	}
	// Output: <nil> [6]
}

// The peak rate of the CPU is the upper limit of a kernel's rate.
func ExamplePeak() {
	rate, instructions := simd.Peak(flashkit.Float32)
	fmt.Printf("%.0f GFLOP/s by %s\n", rate/1e9, instructions)
}
