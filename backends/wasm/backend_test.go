package wasm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/conformance"
)

func TestConformance(t *testing.T) {
	b, err := wasm.New(context.Background())
	if err != nil {
		conformance.Unavailable(t, "wasm", err)
	}
	defer b.Close()
	conformance.Run(t, b)
}

// Attention in a sandbox. The decode kernel refuses a problem with many query rows.
func ExampleNew() {
	b, err := wasm.New(context.Background())
	if errors.Is(err, flashkit.ErrUnavailable) {
		return // use another backend, and say so
	}
	defer b.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 128, KVLen: 128, Dim: 64, VDim: 64, DType: flashkit.BFloat16}
	for _, k := range b.Kernels() {
		fmt.Println(k.Name, k.Pass, k.Fits(p.Ask(k.Pass)) == "")
	}
	// Output:
	// wasm/fwd_simd128 forward true
	// wasm/bwd_simd128 backward true
	// wasm/fwd_scalar forward true
	// wasm/bwd_scalar backward true
	// wasm/decode_simd128 forward false
}

// A sandbox of at most 64 MiB, compiled before the first call.
func ExampleMemoryLimit() {
	b, err := wasm.New(context.Background(), wasm.MemoryLimit(64<<20))
	if err != nil {
		panic(err)
	}
	defer b.Close()
	fmt.Println(b.Compile(context.Background()))
	// Output: <nil>
}

// The module is compiled at the start of the program, not in the first call.
func ExampleBackend() {
	ctx := context.Background()
	b, err := wasm.New(ctx)
	if err != nil {
		panic(err)
	}
	defer b.Close()
	if err := b.Compile(ctx); err != nil {
		panic(err)
	}
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 1, VDim: 1}
	o := make([]float32, 1)
	err = b.Kernels()[0].Compute(ctx, p, &flashkit.Args{
		Q: flashkit.F32([]float32{0}, 1, 1, 1, 1),
		K: flashkit.F32([]float32{1, 2}, 1, 1, 2, 1),
		V: flashkit.F32([]float32{4, 8}, 1, 1, 2, 1),
		O: flashkit.F32(o, 1, 1, 1, 1),
	})
	fmt.Println(b.Name(), b.BatchInvariant(), o, err) // the same bits on every platform
	// Output: wasm true [6] <nil>
}
