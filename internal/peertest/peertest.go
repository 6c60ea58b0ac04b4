// Package peertest tests the GPU transports of packages peer and nccl. It compares the results of
// several ranks with one GPU's results, and checks errors after faults. The tests run on GPUs or on
// a stand-in.
package peertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/ringtest"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/nccl"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// Seed returns the number in FLASHKIT_SEED, or else a random number. It logs this seed.
func Seed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	return seed
}

// OpenAll opens the machine's GPUs until the test ends, or skips the test if there is no GPU.
func OpenAll(t *testing.T) (list []*cuda.Backend) {
	devices, err := cuda.Devices()
	if errors.Is(err, flashkit.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	for _, x := range devices {
		gpu, err := cuda.OpenDevice(x.Ordinal)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, gpu.Close()) })
		list = append(list, gpu)
	}
	return list
}

// A Transport is GPUs and a function that opens ranks on them. Several ranks share a GPU if the
// transport permits.
type Transport struct {
	GPUs []*cuda.Backend
	Open func(gpus []*cuda.Backend) ([]*peer.Rank, error)
}

// Peers is package peer's transport.
func Peers(gpus []*cuda.Backend) Transport { return Transport{gpus, peer.Open} }

// NCCL is package nccl's transport, for ranks of this process. Ranks are opened with ctx, which may
// hold a stand-in for NCCL's library.
func NCCL(ctx context.Context, gpus []*cuda.Backend) Transport {
	return Transport{gpus, func(list []*cuda.Backend) ([]*peer.Rank, error) {
		control, err := ring.Local(len(list))
		if err != nil {
			return nil, err
		}
		return openRanks(list, func(i int, gpu *cuda.Backend) (*peer.Rank, error) {
			return nccl.Open(ctx, control[i], gpu, nccl.Options{})
		})
	}}
}

// Launched is package nccl's transport for ranks that have no other group to exchange IDs. The
// environment must have NCCL_COMM_ID.
func Launched(ctx context.Context, gpus []*cuda.Backend) Transport {
	return Transport{gpus, func(list []*cuda.Backend) ([]*peer.Rank, error) {
		return openRanks(list, func(i int, gpu *cuda.Backend) (*peer.Rank, error) {
			return nccl.OpenLaunched(ctx, ring.Launch{Rank: i, Size: len(list)}, gpu, nccl.Options{})
		})
	}}
}

// openRanks opens ranks concurrently.
func openRanks(list []*cuda.Backend, open func(i int, gpu *cuda.Backend) (*peer.Rank, error)) ([]*peer.Rank, error) {
	ranks, errs := make([]*peer.Rank, len(list)), make([]error, len(list))
	var done sync.WaitGroup
	for i, gpu := range list {
		done.Go(func() { ranks[i], errs[i] = open(i, gpu) })
	}
	done.Wait()
	return ranks, errors.Join(errs...)
}

// Each opens a group of size ranks, runs f on every rank and returns each rank's error.
func Each(t testing.TB, x Transport, size int, f func(r *peer.Rank) error) []error {
	list := make([]*cuda.Backend, size)
	for i := range list {
		list[i] = x.GPUs[i%len(x.GPUs)]
	}
	ranks, err := x.Open(list)
	require.NoError(t, err)
	errs := make([]error, size)
	var done sync.WaitGroup
	for i, r := range ranks {
		done.Go(func() {
			if errs[i] = f(r); errs[i] != nil {
				r.Fail(errs[i])
			}
		})
	}
	done.Wait()
	for _, r := range ranks {
		done.Go(func() {
			assert.NoError(t, r.Close())
			assert.NoError(t, r.Close(), "a second one does nothing")
		})
	}
	done.Wait()
	return errs
}

// singleGPU computes host arguments on one GPU, with the kernel that Pick returns.
type singleGPU struct{ rank *peer.Rank }

func (o singleGPU) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return o.run(ctx, p, flashkit.PassForward, args)
}

func (o singleGPU) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return o.run(ctx, p, flashkit.PassBackward, args)
}

func (o singleGPU) run(ctx context.Context, p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args) (err error) {
	x, err := o.rank.Upload(args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Free()) }()
	k, err := o.rank.Pick(p, pass)
	if err != nil {
		return err
	}
	return errors.Join(k.Compute(ctx, p, x.Args), x.Download(p, pass, args))
}

// Ordered checks that a float32 forward pass with Options.Ordered gives the same bits on a group of
// size ranks as on one GPU.
func Ordered(t *testing.T, tr Transport, size int, name string) {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	whole, numbers := flashkit.NewArgs(p, flashkit.PassForward), rand.New(rand.NewPCG(1, 2))
	for _, x := range []flashkit.Tensor{whole.Q, whole.K, whole.V} {
		for i := range x.Float32s() {
			x.Float32s()[i] = numbers.Float32()*2 - 1
		}
	}
	alone, err := peer.Open(tr.GPUs[:1])
	require.NoError(t, err)
	defer func() { require.NoError(t, alone[0].Close()) }()
	require.NoError(t, singleGPU{alone[0]}.Forward(t.Context(), p, whole))
	cut, err := ring.NewCut(p, nil, size, true)
	require.NoError(t, err)
	for _, err := range Each(t, tr, size, func(r *peer.Rank) error {
		want, err := cut.Shard(r.Rank(), whole)
		if err != nil {
			return err
		}
		got := *want
		n := want.O.Shape()
		got.O = flashkit.Zeros(flashkit.Float32, n[0], n[1], n[2], n[3])
		x, err := r.Upload(&got)
		if err != nil {
			return err
		}
		ranks, err := ring.New(r, r, ring.Options{Ordered: true})
		if err == nil {
			err = errors.Join(ranks.Forward(t.Context(), p, x.Args), x.Download(p, flashkit.PassForward, &got), ranks.Close())
		}
		for i, x := range got.O.Float32s() {
			if err == nil && x != want.O.Float32s()[i] {
				err = fmt.Errorf("rank %d: O[%d] is %g, one GPU has %g", r.Rank(), i, x, want.O.Float32s()[i])
			}
		}
		return errors.Join(err, x.Free())
	}) {
		require.NoError(t, err)
	}
}

// Problems computes both passes of random problems on groups of several sizes, with ordered and
// with plain Rings. The groups use GPUs or a stand-in. A group computes all problems in succession.
func Problems(t *testing.T, tr Transport, sizes []int, seed uint64, n int, standIn bool) {
	alone, err := peer.Open(tr.GPUs[:1])
	require.NoError(t, err)
	defer func() { require.NoError(t, alone[0].Close()) }()
	cases := make([]*ringtest.Case, n)
	for i := range cases {
		cases[i], err = ringtest.New(t.Context(), seed, uint64(i), singleGPU{alone[0]})
		require.NoError(t, err)
	}
	for _, size := range sizes {
		for _, c := range cases {
			if c.Merges = 0; standIn {
				c.Merges = 2 * size // with zig-zag shares, each rank has two parts
			}
		}
		errs := Each(t, tr, size, func(r *peer.Rank) error { return checkAll(t.Context(), cases, r) })
		if err := errors.Join(errs...); err != nil {
			t.Errorf("seed %d, %d ranks: %v", seed, size, err)
		}
	}
}

// checkAll checks the cases on a rank. It continues after wrong results, as the other ranks do.
func checkAll(ctx context.Context, cases []*ringtest.Case, r *peer.Rank) (all error) {
	for i, c := range cases {
		for _, ordered := range []bool{false, true} {
			err := check(ctx, c, r, r, ordered)
			if err == nil {
				continue
			}
			all = errors.Join(all, fmt.Errorf("case %d, ordered %v: %w", i, ordered, err))
			if e := (*ring.RankError)(nil); errors.As(err, &e) {
				return all
			}
		}
	}
	return all
}

// check checks a case on rank r, whose passes and messages go through d.
func check(ctx context.Context, c *ringtest.Case, r *peer.Rank, d ring.Device, ordered bool) (err error) {
	var x *peer.Args
	defer func() {
		if x != nil {
			err = errors.Join(err, x.Free())
		}
	}()
	return c.CheckPlaced(ctx, d, d, ordered, func(shard *flashkit.Args) (*flashkit.Args, func(flashkit.Pass) error, error) {
		if x, err = r.Upload(shard); err != nil {
			return nil, nil, err
		}
		return x.Args, func(pass flashkit.Pass) error { return x.Download(c.Problem, pass, shard) }, nil
	})
}
