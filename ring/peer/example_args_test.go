package peer_test

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// Two ranks that share a GPU test a program for two GPUs.
func ExampleOpen() {
	gpu, err := cuda.Open()
	if err != nil {
		fmt.Println("no GPU")
		return
	}
	defer gpu.Close()
	ranks, err := peer.Open([]*cuda.Backend{gpu, gpu})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range ranks {
		fmt.Println("rank", r.Rank(), "of", r.Size(), "on", r.GPU().Device())
		defer r.Close()
	}
}

// one returns the only rank of a group, nil without a GPU.
func one() *peer.Rank {
	gpu, err := cuda.Open()
	if err != nil {
		return nil
	}
	ranks, err := peer.Open([]*cuda.Backend{gpu})
	if err != nil {
		return nil
	}
	return ranks[0]
}

// A rank's shard moves to its GPU once, for many calls.
func ExampleRank_Upload() {
	r := one() // the only rank of a group
	if r == nil {
		return
	}
	defer r.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1000, KVLen: 1000, Dim: 64, VDim: 64, DType: flashkit.BFloat16}
	args, err := r.Upload(flashkit.NewArgs(p, flashkit.PassForward))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer args.Free()
	fmt.Println(r.Holds(args.Q), args.Q.Shape())
}

// A benchmark needs numbers, but none of the caller's.
func ExampleRank_Random() {
	r := one() // the only rank of a group
	if r == nil {
		return
	}
	defer r.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1000, KVLen: 1000, Dim: 64, VDim: 64, DType: flashkit.BFloat16}
	args, err := r.Random(flashkit.NewArgs(p, flashkit.PassForward), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer args.Free()
}

// The results of a pass return to the host.
func ExampleArgs_Download() {
	r := one() // the only rank of a group
	if r == nil {
		return
	}
	defer r.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1000, KVLen: 1000, Dim: 64, VDim: 64}
	host := flashkit.NewArgs(p, flashkit.PassForward)
	args, err := r.Upload(host)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer args.Free()
	x, err := ring.New(r, r, ring.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer x.Close()
	if err := x.Forward(context.Background(), p, args.Args); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(args.Download(p, flashkit.PassForward, host), host.O.Float32s()[:4])
}

// Free releases the memory before the rank is closed.
func ExampleArgs_Free() {
	r := one() // the only rank of a group
	if r == nil {
		return
	}
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1000, KVLen: 1000, Dim: 64, VDim: 64}
	args, err := r.Upload(flashkit.NewArgs(p, flashkit.PassForward))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(args.Free(), r.Close())
}

// The GPU of a rank, for memory and streams of the program's own.
func ExampleRank_GPU() {
	r := one() // the only rank of a group
	if r == nil {
		return
	}
	defer r.Close()
	m, err := r.GPU().Alloc(1 << 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Free()
	fmt.Println(r.Holds(m.Tensor(flashkit.Float32, 0, 1, 1, 1, 64)))
}

// Work that a program enqueues in the rank's stream is done before the Ring's next call.
func ExampleRank_Stream() {
	r := one() // the only rank of a group
	if r == nil {
		return
	}
	defer r.Close()
	m, err := r.GPU().Alloc(1 << 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Free()
	q := m.Tensor(flashkit.Float32, 0, 1, 1, 1000, 64)
	fmt.Println(r.Stream().Fill(q, .5))
}

// A closed rank leaves its GPU open.
func ExampleRank_Close() {
	gpu, err := cuda.Open()
	if err != nil {
		return
	}
	ranks, err := peer.Open([]*cuda.Backend{gpu})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ranks[0].Close(), gpu.Close())
}
