// Embed computes attention in a Go program: it opens a Dispatcher, describes the problem and calls
// Forward. The Dispatcher runs the fastest kernel of the machine.
//
// The keys and values are a small dictionary. Each word has a unit vector as its key. With the
// large scale, the softmax gives nearly all weight to the keys that match a query best.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

func main() {
	ctx := context.Background()
	d, err := dispatch.Default(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 3, Dim: 3, VDim: 2, Scale: 100}
	q := []float32{ // [B, H, N, D]
		0, 1, 0, // matches the second word
		1, 0, 1, // matches the first and the last word equally
	}
	k := []float32{ // [B, G, M, D]
		1, 0, 0,
		0, 1, 0,
		0, 0, 1,
	}
	v := []float32{ // [B, G, M, DV]
		10, -10,
		20, -20,
		60, -60,
	}
	o := make([]float32, 1*1*2*2) // [B, H, N, DV], the output
	err = d.Forward(ctx, p, &flashkit.Args{
		Q: flashkit.F32(q, 1, 1, 2, 3), K: flashkit.F32(k, 1, 1, 3, 3),
		V: flashkit.F32(v, 1, 1, 3, 2), O: flashkit.F32(o, 1, 1, 2, 2),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the second word:", o[:2])
	fmt.Println("the mean of two:", o[2:])

	if kernel, err := d.Pick(p, flashkit.PassForward); err == nil {
		fmt.Fprintln(os.Stderr, "computed by", kernel.Name)
	}
}
