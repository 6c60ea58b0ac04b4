package simd_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

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
