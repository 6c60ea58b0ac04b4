package dispatch_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// Two sequences share a prefix of three keys. Each has one key of its own.
func ExampleDispatcher_ForwardPrefix() {
	d := dispatch.New(simd.New())
	defer d.Close()
	prefix := &dispatch.Prefix{K: flashkit.F32([]float32{0, 0, 0}, 1, 1, 3, 1), V: flashkit.F32([]float32{1, 2, 3}, 1, 1, 3, 1)}
	args := &flashkit.Args{
		Q: flashkit.F32([]float32{1, 1}, 2, 1, 1, 1),
		K: flashkit.F32([]float32{0, 0}, 2, 1, 1, 1), V: flashkit.F32([]float32{6, 10}, 2, 1, 1, 1),
		O: flashkit.F32(make([]float32, 2), 2, 1, 1, 1),
	}
	err := d.ForwardPrefix(context.Background(), flashkit.ProblemOf(args, flashkit.Causal()), prefix, args)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.3f\n", args.O.Float32s()) // means of 1, 2, 3 and the sequence's own value
	// Output: [3.000 4.000]
}

// The two parts of the call run in turn. On a GPU, run would enqueue them in a stream.
func ExampleRunPrefix() {
	d := dispatch.New(simd.New()).Unpaired()
	defer d.Close()
	prefix := &dispatch.Prefix{K: flashkit.F32([]float32{0, 0, 0}, 1, 1, 3, 1), V: flashkit.F32([]float32{1, 2, 3}, 1, 1, 3, 1)}
	args := &flashkit.Args{
		Q: flashkit.F32([]float32{1, 1}, 2, 1, 1, 1),
		K: flashkit.F32([]float32{0, 0}, 2, 1, 1, 1), V: flashkit.F32([]float32{6, 10}, 2, 1, 1, 1),
		O: flashkit.F32(make([]float32, 2), 2, 1, 1, 1),
	}
	err := dispatch.RunPrefix(flashkit.ProblemOf(args, flashkit.Causal()), prefix, args, func(p flashkit.Problem, args *flashkit.Args) error {
		fmt.Println(p.Batch, "sequences,", p.KVLen, "keys")
		return d.Forward(context.Background(), p, args)
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.3f\n", args.O.Float32s())
	// Output:
	// 1 sequences, 3 keys
	// 2 sequences, 1 keys
	// [3.000 4.000]
}
