package cuda_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	library "github.com/flashkit-go/flashkit/internal/nccl"
	"github.com/flashkit-go/flashkit/internal/peertest"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/nccl"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// standIn has Options name a stand-in for NCCL over one for so many GPUs, and sees at the end that no
// communicator is left.
func standIn(t *testing.T, devices int) ([]*cuda.Backend, *peertest.StandIn, nccl.Options) {
	gpus, fakes := cuda.OpenFakes(t, devices)
	s := &peertest.StandIn{Move: fakes.Move, Pend: fakes.Pend}
	end := library.StandIn(t.Name(), s)
	t.Cleanup(func() {
		end()
		_, err := s.Moved()
		require.NoError(t, err)
	})
	return gpus, s, nccl.Options{Library: t.Name()}
}

// The transport of package ring/nccl on a stand-in for NCCL and one for the GPUs.
func TestNCCLOnFake(t *testing.T) {
	gpus, s, o := standIn(t, 5)
	n, seed := 8, rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	if !testing.Short() {
		n = 60
	}
	peertest.Problems(t, peertest.NCCL(gpus, o), []int{1, 2, 3, 4, 5}, seed, n, true)
	moved, err := s.Moved()
	require.NoError(t, err)
	require.Positive(t, moved)
}

func TestNCCLFaultsOnFake(t *testing.T) {
	gpus, s, o := standIn(t, 8)
	peertest.Faults(t, peertest.NCCL(gpus, o))
	if testing.Short() {
		return
	}
	s.Remote = true // as over a network
	peertest.Faults(t, peertest.NCCL(gpus, o))
}

// Processes that have nothing but NCCL: it gathers too. Who waits for a rank that hangs ends at the
// deadline, and a new group is possible.
func TestNCCLLaunchedOnFake(t *testing.T) {
	gpus, s, o := standIn(t, 4)
	_, err := nccl.OpenLaunched(t.Context(), ring.Launch{Size: 2}, gpus[0], o)
	require.ErrorContains(t, err, "NCCL_COMM_ID")
	t.Setenv("NCCL_COMM_ID", "node0:29501")
	_, err = nccl.OpenLaunched(t.Context(), ring.Launch{Rank: 2, Size: 2}, gpus[0], o)
	require.ErrorContains(t, err, "launch")
	s.SameID = true
	n := 4
	if !testing.Short() {
		n = 20
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	peertest.Problems(t, peertest.Launched(gpus, o), []int{1, 2, 4}, seed, n, true)
	peertest.Hangs(t, peertest.Launched(gpus, o))
	peertest.Problems(t, peertest.Launched(gpus, o), []int{3}, seed, 1, true)
}

// openEach opens ranks, each with options of its own, and closes those that are open.
func openEach(t *testing.T, gpus []*cuda.Backend, timeout time.Duration, o func(rank int) nccl.Options) []error {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	control, err := ring.Local(len(gpus))
	require.NoError(t, err)
	ranks, errs := make([]*peer.Rank, len(gpus)), make([]error, len(gpus))
	var done sync.WaitGroup
	for i, gpu := range gpus {
		done.Go(func() { ranks[i], errs[i] = nccl.Open(ctx, control[i], gpu, o(i)) })
	}
	done.Wait()
	for _, r := range ranks {
		if r != nil {
			done.Go(func() { require.NoError(t, r.Close()) })
		}
	}
	done.Wait()
	return errs
}

// What one rank lacks, all say.
func TestNCCLOpens(t *testing.T) {
	gpus, s, o := standIn(t, 3)
	same := func(int) nccl.Options { return o }
	require.NoError(t, errors.Join(openEach(t, gpus, time.Minute, same)...))

	for r, err := range openEach(t, gpus, time.Minute, func(rank int) nccl.Options {
		if rank == 1 {
			return nccl.Options{Library: "/nowhere/libnccl.so.2"}
		}
		return o
	}) {
		if r == 1 {
			require.ErrorIs(t, err, nccl.ErrNoNCCL)
			require.ErrorIs(t, err, flashkit.ErrUnavailable)
		}
		require.ErrorContains(t, err, "/nowhere/libnccl.so.2")
		if e := (*ring.RankError)(nil); r != 1 && errors.As(err, &e) {
			require.Equal(t, 1, e.Rank)
		}
	}

	fault := &library.Error{Call: "NCCL", Code: 5, Text: "Duplicate GPU detected"}
	s.FailInit = func(rank int) error {
		if rank == 2 {
			return fault
		}
		return nil
	}
	begin := time.Now()
	for _, err := range openEach(t, gpus, time.Minute, same) {
		var e *ring.RankError
		require.ErrorAs(t, err, &e)
		require.Equal(t, 2, e.Rank)
		require.ErrorIs(t, err, fault)
	}
	require.Less(t, time.Since(begin), 2*time.Second)
	s.FailInit = nil
	require.NoError(t, errors.Join(openEach(t, gpus, time.Minute, same)...), "a new group is possible after all of that")
}

// A rank that never comes to Open ends it at the deadline of the context.
func TestNCCLOpensAlone(t *testing.T) {
	gpus, _, o := standIn(t, 1)
	control, err := ring.Local(2)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = nccl.Open(ctx, control[0], gpus[0], o)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestNCCLRefuses(t *testing.T) {
	gpus, _, o := standIn(t, 1)
	control, err := ring.Local(1)
	require.NoError(t, err)
	many := o
	many.Channels = 33
	for want, open := range map[string]func() (*peer.Rank, error){
		"control":  func() (*peer.Rank, error) { return nccl.Open(t.Context(), nil, gpus[0], o) },
		"gpu":      func() (*peer.Rank, error) { return nccl.Open(t.Context(), control[0], nil, o) },
		"Channels": func() (*peer.Rank, error) { return nccl.Open(t.Context(), control[0], gpus[0], many) },
	} {
		_, err := open()
		var e *flashkit.ProblemError
		require.ErrorAs(t, err, &e, want)
		require.ErrorContains(t, err, want)
	}
}
