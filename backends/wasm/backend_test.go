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
