package ring_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/ring"
)

// Three ranks in one process compute a causal pass of seven rows.
func Example() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 7, KVLen: 7, Dim: 4, VDim: 4, DType: flashkit.Float32, Band: flashkit.Causal()}
	whole := flashkit.NewArgs(p, flashkit.PassForward)
	for i := range whole.V.Float32s() {
		whole.V.Float32s()[i] = float32(i / 4) // of key i/4
	}
	cut, _ := ring.NewCut(p, nil, 3, false)
	groups, _ := ring.Local(3)
	var ranks sync.WaitGroup
	for rank, g := range groups {
		ranks.Go(func() {
			r, err := ring.New(g, d, ring.Options{})
			if err != nil {
				panic(err)
			}
			defer r.Close()
			shard, _ := cut.Shard(rank, whole)
			if err := r.Forward(context.Background(), p, shard); err != nil {
				panic(err)
			}
			cut.Join(rank, flashkit.PassForward, whole, shard) // only its own rows
		})
	}
	ranks.Wait()
	for i := range 7 {
		fmt.Printf("%.3g ", whole.O.Float32s()[4*i])
	}
	// Output: 0 0.5 1 1.5 2 2.5 3
}

// The rows of each rank under a causal mask, from the front and the back.
func ExampleCut() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 16, KVLen: 16, Dim: 4, VDim: 4, DType: flashkit.Float32, Band: flashkit.Causal()}
	cut, _ := ring.NewCut(p, nil, 4, false)
	for rank := range cut.Size() {
		fmt.Println(rank, cut.Rows(rank))
	}
	// Output:
	// 0 [{0 0 2} {0 14 16}]
	// 1 [{0 2 4} {0 12 14}]
	// 2 [{0 4 6} {0 10 12}]
	// 3 [{0 6 10}]
}

// How many ranks a network supports before communication dominates.
func ExamplePredict() {
	p, _ := flashkit.ParseProblem("b1-h32-g8-n131072-m131072-d128-bf16-causal")
	link, _ := ring.LinkOf("infiniband")
	for _, ranks := range []int{2, 16, 64} {
		plan, err := ring.Predict(p, nil, ranks, flashkit.PassForward, ring.Machine{FLOPs: 600e12}, link)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%d ranks: %.0f %% hidden\n", ranks, 100*plan.Hidden)
	}
	// Output:
	// 2 ranks: 100 % hidden
	// 16 ranks: 100 % hidden
	// 64 ranks: 29 % hidden
}

// A process that torchrun started finds its rank and its GPU.
func ExampleLaunched() {
	env := map[string]string{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
	x, err := ring.Launched(func(name string) string { return env[name] })
	if err != nil {
		panic(err)
	}
	fmt.Println(x.Launcher, x.Rank, "of", x.Size, "on GPU", x.Local)
	// Output: torchrun 3 of 8 on GPU 1
}
