// Quickstart computes one layer of causal attention. Q, K, V and O have the
// layout of most models: [batch, rows, heads, head dim].
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

func main() {
	ctx := context.Background()
	d, err := dispatch.Default(ctx) // opens every backend that this machine can run
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	const B, H, G, S, D = 1, 8, 2, 128, 64 // batch, query heads, key/value heads, rows, head dim
	q, k, v, o := random(B*S*H*D), random(B*S*G*D), random(B*S*G*D), make([]float32, B*S*H*D)

	p := flashkit.Problem{Batch: B, Heads: H, KVHeads: G, QLen: S, KVLen: S, Dim: D, VDim: D, Band: flashkit.Causal()}
	err = d.Forward(ctx, p, &flashkit.Args{
		Q: flashkit.F32(q, B, H, S, D).AsBSHD(),
		K: flashkit.F32(k, B, G, S, D).AsBSHD(),
		V: flashkit.F32(v, B, G, S, D).AsBSHD(),
		O: flashkit.F32(o, B, H, S, D).AsBSHD(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p)
	fmt.Println("row 0 sees key 0 only, so its O is that V:", o[0] == v[0])
}

func random(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rand.NormFloat64())
	}
	return x
}
