package peer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// A causal sequence over all GPUs of the machine, a goroutine each.
func Example() {
	devices, err := cuda.Devices()
	if err != nil {
		fmt.Println("no GPU")
		return
	}
	var gpus []*cuda.Backend
	for _, d := range devices {
		gpu, err := cuda.OpenDevice(d.Ordinal)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer gpu.Close()
		gpus = append(gpus, gpu)
	}
	ranks, err := peer.Open(gpus)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, _ := flashkit.ParseProblem("b1-h8-g2-n1000-m1000-d64-bf16-causal")
	whole := flashkit.NewArgs(p, flashkit.PassForward) // Q, K and V of all tokens, on the host
	errs := make([]error, len(ranks))
	var done sync.WaitGroup
	for i, r := range ranks {
		done.Go(func() { errs[i] = attend(r, p, whole) })
	}
	done.Wait()
	fmt.Println(errors.Join(errs...))
}

// attend runs one rank.
func attend(r *peer.Rank, p flashkit.Problem, whole *flashkit.Args) (err error) {
	defer func() { err = errors.Join(err, r.Close()) }()
	cut, err := ring.NewCut(p, nil, r.Size(), false)
	if err != nil {
		return err
	}
	shard, err := cut.Shard(r.Rank(), whole)
	if err != nil {
		return err
	}
	args, err := r.Upload(shard)
	if err != nil {
		return err
	}
	defer args.Free()
	x, err := ring.New(r, r, ring.Options{})
	if err != nil {
		return err
	}
	defer x.Close()
	if err := x.Forward(context.Background(), p, args.Args); err != nil {
		return err
	}
	return args.Download(p, flashkit.PassForward, shard)
}
