package gorgoniacu_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda/gorgoniacu"
	"gorgonia.org/cu"
)

// Attention over device memory that a program got from cu, in its own context and
// stream.
func ExampleOpen() {
	const elements = 8 * 128 * 64 // of each tensor
	ctx := cu.NewContext(cu.Device(0), cu.SchedAuto)
	stream, err := ctx.MakeStream(cu.NonBlocking)
	if err != nil {
		log.Fatal(err)
	}
	memory, err := ctx.MemAlloc(4 * elements * 4)
	if err != nil {
		log.Fatal(err)
	}
	// The program fills Q, K and V here, in the stream.

	b, err := gorgoniacu.Open(ctx.CUDAContext())
	if err != nil {
		log.Fatal(err)
	}
	s := b.WrapStream(gorgoniacu.Stream(stream))
	m := b.Wrap(gorgoniacu.Pointer(memory), 4*elements*4)
	at := func(i int) flashkit.Tensor { return m.Tensor(flashkit.Float32, i*elements, 1, 8, 128, 64) }
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 128, KVLen: 128, Dim: 64, VDim: 64, DType: flashkit.Float32, Band: flashkit.Causal()}
	if err := b.Forward(context.Background(), s, p, &flashkit.Args{Q: at(0), K: at(1), V: at(2), O: at(3)}); err != nil {
		log.Fatal(err)
	}
	// What the program puts in the stream from here on sees O.

	ctx.SynchronizeStream(stream)
	fmt.Println(p, ctx.Error())
	fmt.Println(b.Close(), ctx.Close())
	// Output:
	// b1-h8-g8-n128-m128-d64-f32-causal <nil>
	// <nil> <nil>
}
