package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	library "github.com/flashkit-go/flashkit/internal/nccl"
	"github.com/flashkit-go/flashkit/internal/peertest"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/nccl"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// standIn returns that many GPUs and a stand-in for NCCL over them, in a context. At the end it
// checks that no communicator is left.
func standIn(t *testing.T, devices int) ([]*cuda.Backend, *peertest.StandIn, context.Context) {
	gpus, fakes := cuda.OpenFakes(t, devices)
	s := &peertest.StandIn{Move: fakes.Move, Pend: fakes.Pend}
	t.Cleanup(func() {
		_, err := s.Moved()
		require.NoError(t, err)
	})
	return gpus, s, library.WithStandIn(t.Context(), s)
}

// The transport of package ring/nccl on stand-ins for NCCL and the GPUs.
func TestNCCLOnFake(t *testing.T) {
	gpus, s, ctx := standIn(t, 5)
	n, seed := 8, peertest.Seed(t)
	if !testing.Short() {
		n = 60
	}
	peertest.Problems(t, peertest.NCCL(ctx, gpus), []int{1, 2, 3, 4, 5}, seed, n, true)
	moved, err := s.Moved()
	require.NoError(t, err)
	require.Positive(t, moved)
}

// Keys travel in three rounds. Their parts of heads are the same on both ranks, of which one has
// twice the rows. TestNCCLOnFake has several rounds too.
func TestNCCLRoundsOnFake(t *testing.T) {
	slow.UnderRace(t)
	gpus, _, ctx := standIn(t, 2)
	peertest.Ordered(t, peertest.NCCL(ctx, gpus), 2, "b1-h640-g10-n384-m384-d4-f32")
}

func TestNCCLFaultsOnFake(t *testing.T) {
	gpus, s, ctx := standIn(t, 8)
	peertest.Faults(t, peertest.NCCL(ctx, gpus), 8)
	if testing.Short() {
		return
	}
	peertest.Faults(t, peertest.NCCL(ctx, gpus), 2)
	s.Remote = true // as over a network
	peertest.Faults(t, peertest.NCCL(ctx, gpus), 8)
}

// Processes that have only NCCL also gather through it. A rank that waits for a hanging one ends at
// the deadline, and a new group is possible.
func TestNCCLLaunchedOnFake(t *testing.T) {
	gpus, s, ctx := standIn(t, 4)
	_, err := nccl.OpenLaunched(t.Context(), ring.Launch{Size: 2}, gpus[0], nccl.Options{})
	require.ErrorContains(t, err, "NCCL_COMM_ID")
	t.Setenv("NCCL_COMM_ID", "node0:29501")
	_, err = nccl.OpenLaunched(t.Context(), ring.Launch{Rank: 2, Size: 2}, gpus[0], nccl.Options{})
	require.ErrorContains(t, err, "launch")
	s.SameID = true
	n := 4
	if !testing.Short() {
		n = 20
	}
	seed := peertest.Seed(t)
	peertest.Problems(t, peertest.Launched(ctx, gpus), []int{1, 2, 4}, seed, n, true)
	peertest.Hangs(t, peertest.Launched(ctx, gpus), 3, 0)
	peertest.Hangs(t, peertest.Launched(ctx, gpus), 3, 1)
	peertest.Problems(t, peertest.Launched(ctx, gpus), []int{3}, seed, 1, true)
}

// Tensors arrive as sent, whatever the layout of their rows at either end.
func TestNCCLMoves(t *testing.T) {
	gpus, s, ctx := standIn(t, 2)
	const b, h, n, d = 2, 3, 5, 4
	for i, heads := range []int{h, h, 80} { // 80 go as one message, those apart one by one
		size := b * heads * n * d
		layouts := map[string][3]int{
			"dense":           {heads * n * d, n * d, d},
			"heads apart":     {heads * n * d * 2, n * d * 2, d},
			"rows in between": {heads * n * d, d, heads * d},
		}
		for from, strides := range layouts {
			for to, others := range layouts {
				before, err := s.Moved()
				require.NoError(t, err)
				for _, err := range peertest.Each(t, peertest.NCCL(ctx, gpus), 2, func(r *peer.Rank) error {
					m, err := r.GPU().Alloc(2 * size * 4)
					if err != nil {
						return err
					}
					defer m.Free()
					view := m.Tensor(flashkit.Float32, 0, b, heads, n, d)
					host := make([]float32, 2*size)
					if r.Rank() == 0 {
						view = view.WithStrides(strides[0], strides[1], strides[2])
						for i := range host {
							host[i] = float32(i)
						}
					} else {
						view = view.WithStrides(others[0], others[1], others[2])
					}
					if err := cuda.Upload(r.Stream(), m, 0, host); err != nil {
						return err
					}
					message := []ring.Message{{Peer: 1 - r.Rank(), Tensors: []flashkit.Tensor{view}, Apart: i == 1}}
					if r.Rank() == 0 {
						return errors.Join(r.Start(t.Context(), message, nil), r.Wait(t.Context()))
					}
					if err := errors.Join(r.Start(t.Context(), nil, message), r.Wait(t.Context())); err != nil {
						return err
					}
					if err := cuda.Download(r.Stream(), host, m, 0); err != nil {
						return err
					}
					for i := range size {
						x := [4]int{i / (heads * n * d), i / (n * d) % heads, i / d % n, i % d}
						want := x[0]*strides[0] + x[1]*strides[1] + x[2]*strides[2] + x[3]
						at := x[0]*others[0] + x[1]*others[1] + x[2]*others[2] + x[3]
						if host[at] != float32(want) {
							return fmt.Errorf("%v is %g, want %d", x, host[at], want)
						}
					}
					return nil
				}) {
					require.NoError(t, err, "%d heads, %s to %s, apart %v", heads, from, to, i == 1)
				}
				after, err := s.Moved()
				require.NoError(t, err)
				require.Equal(t, size*4, after-before-2, "and a byte of each rank, as they meet")
			}
		}
	}
}

// A transport refuses tensors that it cannot send, on the rank that asks.
func TestNCCLMisuse(t *testing.T) {
	gpus, _, ctx := standIn(t, 2)
	for _, err := range peertest.Each(t, peertest.NCCL(ctx, gpus), 2, func(r *peer.Rank) error {
		if r.Rank() == 1 {
			<-r.Group.(ring.Breaker).Broken()
			return r.Gather(t.Context(), nil, nil)
		}
		host := flashkit.F32(make([]float32, 4), 1, 1, 1, 4)
		return errors.Join(r.Start(t.Context(), []ring.Message{{Peer: 1, Tensors: []flashkit.Tensor{host}}}, nil), r.Wait(t.Context()))
	}) {
		require.ErrorContains(t, err, "must lie on the rank's GPU")
	}
	for _, err := range peertest.Each(t, peertest.NCCL(ctx, gpus), 2, func(r *peer.Rank) error {
		if r.Rank() == 1 {
			<-r.Group.(ring.Breaker).Broken()
			return r.Gather(t.Context(), nil, nil)
		}
		return errors.Join(r.Start(t.Context(), []ring.Message{{Peer: 2}}, nil), r.Wait(t.Context()))
	}) {
		require.ErrorContains(t, err, "from 0 to 1")
	}
}

// openEach opens ranks, each with a context and options of its own, and closes those that are open.
func openEach(t *testing.T, gpus []*cuda.Backend, of func(rank int) (context.Context, nccl.Options)) []error {
	control, err := ring.Local(len(gpus))
	require.NoError(t, err)
	ranks, errs := make([]*peer.Rank, len(gpus)), make([]error, len(gpus))
	var done sync.WaitGroup
	for i, gpu := range gpus {
		done.Go(func() {
			ctx, o := of(i)
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			ranks[i], errs[i] = nccl.Open(ctx, control[i], gpu, o)
		})
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

// All ranks report the lack of one.
func TestNCCLOpens(t *testing.T) {
	gpus, s, ctx := standIn(t, 3)
	same := func(int) (context.Context, nccl.Options) { return ctx, nccl.Options{} }
	require.NoError(t, errors.Join(openEach(t, gpus, same)...))

	for r, err := range openEach(t, gpus, func(rank int) (context.Context, nccl.Options) {
		if rank == 1 {
			return t.Context(), nccl.Options{Library: "/nowhere/libnccl.so.2"}
		}
		return ctx, nccl.Options{}
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
	for _, err := range openEach(t, gpus, same) {
		var e *ring.RankError
		require.ErrorAs(t, err, &e)
		require.Equal(t, 2, e.Rank)
		require.ErrorIs(t, err, fault)
	}
	require.Less(t, time.Since(begin), 2*time.Second)
	s.FailInit = nil
	require.NoError(t, errors.Join(openEach(t, gpus, same)...), "a new group is possible after all of that")
}

// Open ends at the context's deadline if a rank never comes.
func TestNCCLOpensAlone(t *testing.T) {
	gpus, _, ctx := standIn(t, 1)
	control, err := ring.Local(2)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = nccl.Open(ctx, control[0], gpus[0], nccl.Options{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestNCCLRefuses(t *testing.T) {
	gpus, _, ctx := standIn(t, 1)
	control, err := ring.Local(1)
	require.NoError(t, err)
	o := nccl.Options{}
	many := nccl.Options{Channels: 33}
	for want, open := range map[string]func() (*peer.Rank, error){
		"control":  func() (*peer.Rank, error) { return nccl.Open(ctx, nil, gpus[0], o) },
		"gpu":      func() (*peer.Rank, error) { return nccl.Open(ctx, control[0], nil, o) },
		"Channels": func() (*peer.Rank, error) { return nccl.Open(ctx, control[0], gpus[0], many) },
		"join":     func() (*peer.Rank, error) { return peer.Over(gpus[0], 0, nil) },
		"gpu = ":   func() (*peer.Rank, error) { return peer.Over(nil, 0, nil) },
	} {
		_, err := open()
		var e *flashkit.ProblemError
		require.ErrorAs(t, err, &e, want)
		require.ErrorContains(t, err, want)
	}
}
