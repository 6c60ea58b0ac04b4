package ranks

import (
	"context"
	"errors"
	"sync"

	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
	"github.com/flashkit-go/flashkit/ring/nccl"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// openRanks returns the ranks of this process, one on each GPU.
func (f *Run) openRanks(ctx context.Context, gpus []*cuda.Backend) ([]*peer.Rank, error) {
	if !f.NCCL {
		return peer.Open(gpus)
	}
	control, err := ring.Local(len(gpus))
	if err != nil {
		return nil, err
	}
	ranks, errs := make([]*peer.Rank, len(gpus)), make([]error, len(gpus))
	var done sync.WaitGroup
	for i, gpu := range gpus {
		done.Go(func() { ranks[i], errs[i] = nccl.Open(ctx, control[i], gpu, nccl.Options{}) })
	}
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, closeRanks(ranks))
	}
	return ranks, nil
}

// closeRanks closes the ranks that are not nil, concurrently, because NCCL's ranks must leave
// together.
func closeRanks(ranks []*peer.Rank) error {
	errs := make([]error, len(ranks))
	var done sync.WaitGroup
	for i, r := range ranks {
		if r != nil {
			done.Go(func() { errs[i] = r.Close() })
		}
	}
	done.Wait()
	return errors.Join(errs...)
}

// OverNCCL computes the problems with this process as one rank, and closes gpu. Ranks that mpiexec
// started find each other through MPI, other ranks through NCCL_COMM_ID.
func (f *Run) OverNCCL(ctx context.Context, list []Problem, gpu *cuda.Backend, launch ring.Launch) error {
	rank, leave, err := f.joinNCCL(ctx, gpu, launch)
	if err != nil {
		return errors.Join(err, gpu.Close())
	}
	for i := range list {
		result, err := f.rankOnGPU(ctx, rank, &list[i])
		if err == nil && rank.Rank() == 0 {
			err = f.Print(result)
		}
		if err != nil {
			rank.Fail(err)
			return errors.Join(err, rank.Close(), gpu.Close()) // the program ends, and the launcher ends the other ranks
		}
	}
	return errors.Join(rank.Close(), gpu.Close(), leave()) // the GPU closes before MPI, which may shut down the CUDA driver
}

// joinNCCL returns this process's rank, and a function to call after the rank is closed. If the
// ranks use MPI, the function leaves MPI.
func (f *Run) joinNCCL(ctx context.Context, gpu *cuda.Backend, launch ring.Launch) (*peer.Rank, func() error, error) {
	if launch.Launcher != "MPI" {
		rank, err := nccl.OpenLaunched(ctx, launch, gpu, nccl.Options{})
		return rank, func() error { return nil }, err
	}
	control, err := mpi.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	rank, err := nccl.Open(ctx, control, gpu, nccl.Options{})
	return rank, control.Close, err
}
