package ring_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/ring"
)

// inTwo returns the shards of a call for two ranks, and the Rings of these ranks.
func inTwo(p flashkit.Problem, whole *flashkit.Args, d *dispatch.Dispatcher, o ring.Options) (cut *ring.Cut, shards [2]*flashkit.Args, rings [2]*ring.Ring) {
	cut, err := ring.NewCut(p, nil, 2, false)
	if err != nil {
		panic(err)
	}
	groups, err := ring.Local(2)
	if err != nil {
		panic(err)
	}
	for rank, g := range groups {
		shards[rank], err = cut.Shard(rank, whole)
		if err != nil {
			panic(err)
		}
		rings[rank], err = ring.New(g, d, o)
		if err != nil {
			panic(err)
		}
		o = ring.Options{} // Progress of rank 0 only
	}
	return cut, shards, rings
}

// Goroutines of one process, which agree on the longest of their sequences.
func ExampleLocal() {
	groups, err := ring.Local(3)
	if err != nil {
		panic(err)
	}
	tokens, all := [][]byte{{4}, {9}, {6}}, make([]byte, 3)
	var ranks sync.WaitGroup
	for rank, g := range groups {
		ranks.Go(func() {
			mine := make([]byte, 3)
			if err := g.Gather(context.Background(), tokens[rank], mine); err != nil {
				panic(err)
			}
			if rank == 0 {
				copy(all, mine)
			}
		})
	}
	ranks.Wait()
	fmt.Println(all)
	// Output: [4 9 6]
}

// A Ring has a dispatcher's methods. An ordered one has the bits of a single device.
func ExampleNew() {
	d := dispatch.New(simd.New())
	defer d.Close()
	groups, err := ring.Local(2)
	if err != nil {
		panic(err)
	}
	r, err := ring.New(groups[0], d, ring.Options{Ordered: true})
	fmt.Println(err, r.Close())
	_, err = ring.New(groups[0], nil, ring.Options{})
	fmt.Println(err)
	// Output:
	// <nil> <nil>
	// flashkit: Runner = nil: is missing
}

// Two ranks compute one row. Each holds half of the keys.
func ExampleRing_Forward() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 4, Dim: 1, VDim: 1}
	whole := flashkit.NewArgs(p, flashkit.PassForward)
	copy(whole.V.Float32s(), []float32{1, 2, 3, 4}) // equal scores: the output is the mean
	cut, shards, rings := inTwo(p, whole, d, ring.Options{})
	var ranks sync.WaitGroup
	for rank, r := range rings {
		ranks.Go(func() {
			err := r.Forward(context.Background(), p, shards[rank])
			if err = errors.Join(err, cut.Join(rank, flashkit.PassForward, whole, shards[rank]), r.Close()); err != nil {
				panic(err)
			}
		})
	}
	ranks.Wait()
	fmt.Printf("%.3f\n", whole.O.Float32s())
	// Output: [2.500]
}

// A training step of two ranks: the backward pass reads the results of the forward pass.
func ExampleRing_Backward() {
	ctx, d := context.Background(), dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 2, Dim: 1, VDim: 1, Band: flashkit.Causal()}
	whole := flashkit.NewArgs(p, flashkit.PassBackward)
	copy(whole.DO.Float32s(), []float32{1, 1}) // gradients of the sum of the outputs
	cut, shards, rings := inTwo(p, whole, d, ring.Options{})
	var ranks sync.WaitGroup
	for rank, r := range rings {
		ranks.Go(func() {
			err := errors.Join(r.Forward(ctx, p, shards[rank]), r.Backward(ctx, p, shards[rank]))
			if err = errors.Join(err, cut.Join(rank, flashkit.PassBackward, whole, shards[rank]), r.Close()); err != nil {
				panic(err)
			}
		})
	}
	ranks.Wait()
	fmt.Printf("%.3f\n", whole.DV.Float32s())
	// Output: [1.500 0.500]
}

// A Ring is closed before its group and its dispatcher.
func ExampleRing_Close() {
	d := dispatch.New(simd.New())
	groups, err := ring.Local(1)
	if err != nil {
		panic(err)
	}
	r, err := ring.New(groups[0], d, ring.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(errors.Join(r.Close(), groups[0].Close(), d.Close()))
	// Output: <nil>
}

// The bytes that a rank sends: half of K and V in float32.
func ExampleRing_Stats() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 64, KVLen: 64, Dim: 16, VDim: 16}
	_, shards, rings := inTwo(p, flashkit.NewArgs(p, flashkit.PassForward), d, ring.Options{})
	var ranks sync.WaitGroup
	for rank, r := range rings {
		ranks.Go(func() { r.Forward(context.Background(), p, shards[rank]) })
	}
	ranks.Wait()
	s := rings[0].Stats()
	fmt.Println(s.Steps, "steps,", s.Sent, "bytes sent,", s.Compute > 0)
	// Output: 2 steps, 4096 bytes sent, true
}

// A long computation shows its progress on one rank.
func ExampleProgress() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 64, KVLen: 64, Dim: 16, VDim: 16}
	_, shards, rings := inTwo(p, flashkit.NewArgs(p, flashkit.PassForward), d, ring.Options{
		Progress: func(x ring.Progress) {
			if x.Waiting == 0 {
				fmt.Println("step", x.Step, "of", x.Steps)
			}
		}})
	var ranks sync.WaitGroup
	for rank, r := range rings {
		ranks.Go(func() { r.Forward(context.Background(), p, shards[rank]) })
	}
	ranks.Wait()
	// Output:
	// step 1 of 2
	// step 2 of 2
}

// A rank that fails ends the calls of all others, which learn its number.
func ExampleRankError() {
	groups, err := ring.Local(2)
	if err != nil {
		panic(err)
	}
	groups[1].Fail(errors.New("out of memory"))
	err = groups[0].Gather(context.Background(), make([]byte, 1), make([]byte, 2))
	var failed *ring.RankError
	if errors.As(err, &failed) {
		fmt.Println("rank", failed.Rank, "failed:", failed.Err)
	}
	// Output: rank 1 failed: out of memory
}

// The links that Predict knows by name.
func ExampleLinks() {
	for _, name := range ring.Links() {
		link, err := ring.LinkOf(name)
		fmt.Println(name, link.Rate/1e9, "GB/s", err)
	}
	// Output:
	// nvlink4 350 GB/s <nil>
	// infiniband 45 GB/s <nil>
	// ethernet100 11 GB/s <nil>
	// ethernet10 1.1 GB/s <nil>
	// shared 3.5 GB/s <nil>
}

// The time of a message of 32 MB, and a link that is unknown.
func ExampleLinkOf() {
	link, err := ring.LinkOf("ethernet100")
	if err != nil {
		panic(err)
	}
	fmt.Printf("%.1f ms\n", (link.Latency.Seconds()+32e6/link.Rate)*1e3)
	_, err = ring.LinkOf("wifi")
	fmt.Println(err)
	// Output:
	// 2.9 ms
	// flashkit: link = wifi: must be one of nvlink4, infiniband, ethernet100, ethernet10, shared
}
