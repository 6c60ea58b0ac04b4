package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
	"github.com/flashkit-go/flashkit/ring/nccl"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// The transports of ranks on GPUs. auto is the fastest: peer in one process.
const (
	transportAuto = "auto"
	transportPeer = "peer"
	transportNCCL = "nccl"
)

var transports = []string{transportAuto, transportPeer, transportNCCL}

// openRanks returns the ranks of this process, one on each GPU.
func (f *ringFlags) openRanks(ctx context.Context, gpus []*cuda.Backend) ([]*peer.Rank, error) {
	if f.transport != transportNCCL {
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

// closeRanks closes those that are open at the same time, as ranks of NCCL leave together.
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

// overNCCL is one rank, in a process of its own. Those of mpiexec meet by MPI, others by NCCL_COMM_ID.
func (f *ringFlags) overNCCL(ctx context.Context, cmd *cobra.Command, list []ringProblem, launch ring.Launch) error {
	if launch.Launcher == "MPI" {
		if status, watched := mpi.Watch(cmd.ErrOrStderr()); watched && status != 0 {
			return failed(fmt.Errorf("the rank ended with status %d", status))
		} else if watched {
			return nil
		}
	}
	if !cmd.Flags().Changed("link") {
		f.link = "nvlink4"
	}
	device, err := f.localDevice(launch)
	if err != nil {
		return err
	}
	if _, err := nccl.Version(nccl.Options{}); err != nil {
		return err
	}
	gpu, err := cuda.OpenDevice(device)
	if err != nil {
		return err
	}
	rank, leave, err := f.joinNCCL(ctx, gpu, launch)
	if err != nil {
		return runError(errors.Join(err, gpu.Close()))
	}
	for i := range list {
		result, err := f.gpu(ctx, rank, &list[i], cmd.ErrOrStderr())
		if err == nil && rank.Rank() == 0 {
			err = f.print(cmd.OutOrStdout(), result)
		}
		if err != nil {
			rank.Fail(err)
			return failed(errors.Join(err, rank.Close(), gpu.Close())) // the program ends, and the launcher the other ranks
		}
	}
	return failed(errors.Join(rank.Close(), gpu.Close(), leave())) // the GPU before MPI, with which the CUDA driver may shut down
}

// joinNCCL returns this process's rank, and what leaves the group by which it met the others.
func (f *ringFlags) joinNCCL(ctx context.Context, gpu *cuda.Backend, launch ring.Launch) (*peer.Rank, func() error, error) {
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

// localDevice returns the GPU of a process: that which --devices has at its number on the machine, or
// the one of that number.
func (f *ringFlags) localDevice(launch ring.Launch) (int, error) {
	if f.devices == "" {
		return launch.Local, nil
	}
	list := strings.Split(f.devices, ",")
	if launch.Local >= len(list) {
		return 0, fmt.Errorf("--devices %q: names %d, rank %d is number %d of its machine", f.devices, len(list), launch.Rank, launch.Local)
	}
	return f.deviceNumber(list[launch.Local])
}

// checkTransport refuses a transport that has no GPUs to go over.
func (f *ringFlags) checkTransport(launch ring.Launch) error {
	switch {
	case f.transport == transportAuto:
		return nil
	case f.transport != transportPeer && f.transport != transportNCCL:
		return fmt.Errorf("--transport %q: must be one of %s", f.transport, strings.Join(transports, ", "))
	case f.hosted:
		return fmt.Errorf("--transport %s: moves tensors of GPUs, which --host leaves on the host", f.transport)
	case f.transport == transportPeer && launch.Size > 1:
		return fmt.Errorf("--transport peer: is for the GPUs of one process, and %s started %d", launch.Launcher, launch.Size)
	case launch.Size == 1 && f.devices == "":
		return fmt.Errorf("--transport %s: needs the GPUs of --devices, or a launcher's processes", f.transport)
	}
	return nil
}
