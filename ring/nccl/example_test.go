package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
	"github.com/flashkit-go/flashkit/ring/nccl"
)

// A rank of mpiexec uses the GPU with its local number.
func Example() {
	launch, err := ring.Launched(os.Getenv)
	if err != nil {
		fmt.Println(err)
		return
	}
	gpu, err := cuda.OpenDevice(launch.Local)
	if err != nil {
		fmt.Println("no GPU")
		return
	}
	defer gpu.Close()
	ctx := context.Background()
	control, err := mpi.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	rank, err := nccl.Open(ctx, control, gpu, nccl.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, _ := flashkit.ParseProblem("b1-h8-g2-n1000-m1000-d64-bf16-causal")
	cut, _ := ring.NewCut(p, nil, rank.Size(), false)
	shard, _ := cut.Shard(rank.Rank(), flashkit.NewArgs(p, flashkit.PassForward))
	args, err := rank.Upload(shard)
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := ring.New(rank, rank, ring.Options{})
	if err == nil {
		err = x.Forward(ctx, p, args.Args)
	}
	fmt.Println(errors.Join(err, x.Close(), args.Free(), rank.Close(), control.Close()))
}

// The GPUs of one process, a goroutine each, meet through a group in memory.
func ExampleOpen() {
	groups, err := ring.Local(2)
	if err != nil {
		fmt.Println(err)
		return
	}
	var ranks sync.WaitGroup
	for i, control := range groups {
		ranks.Go(func() {
			gpu, err := cuda.OpenDevice(i)
			if err != nil {
				control.Fail(err) // so that the other rank does not wait
				return
			}
			defer gpu.Close()
			rank, err := nccl.Open(context.Background(), control, gpu, nccl.Options{Channels: 8})
			if err != nil {
				fmt.Println(err)
				return
			}
			defer rank.Close()
			fmt.Println("rank", rank.Rank(), "on", gpu.Device())
		})
	}
	ranks.Wait()
}

// A rank of torchrun starts with NCCL_COMM_ID in its environment.
func ExampleOpenLaunched() {
	launch, err := ring.Launched(os.Getenv)
	if err != nil || launch.Launcher != "torchrun" {
		return
	}
	gpu, err := cuda.OpenDevice(launch.Local)
	if err != nil {
		return
	}
	defer gpu.Close()
	rank, err := nccl.OpenLaunched(context.Background(), launch, gpu, nccl.Options{})
	if err != nil {
		return
	}
	defer rank.Close()
	fmt.Println("rank", rank.Rank(), "of", rank.Size())
}

// ErrNoNCCL names the packages that contain the library.
func ExampleVersion() {
	_, err := nccl.Version(nccl.Options{Library: "/nowhere/libnccl.so.2"})
	fmt.Println(errors.Is(err, nccl.ErrNoNCCL), errors.Is(err, flashkit.ErrUnavailable))
	// Output: true true
}
