// Simdonly is a program with only the simd backend, for TestSizesOfPrograms.
package main

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

func main() {
	args := &flashkit.Args{}
	for _, x := range []*flashkit.Tensor{&args.Q, &args.K, &args.V, &args.O} {
		*x = flashkit.Zeros(flashkit.Float32, 1, 1, 8, 64)
	}
	p := flashkit.ProblemOf(args, flashkit.Causal())
	for _, k := range simd.New().Kernels() {
		if k.Fits(p.Ask(k.Pass)) == "" {
			fmt.Println(k.Name, k.Compute(context.Background(), p, args))
		}
	}
}
