// Package peertest holds the transports for tensors on GPUs, those of packages peer and nccl, to what
// one GPU computes, and to what they say of faults: on GPUs, and on a stand-in for them.
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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/ringtest"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/nccl"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// Seed returns FLASHKIT_SEED, else one drawn at random, and logs it.
func Seed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	return seed
}

// OpenAll opens the GPUs of this machine until the test ends, or skips it where there are none.
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

// A Transport is GPUs, and how ranks on them are opened. Ranks take the GPUs in turn, if the transport
// lets them.
type Transport struct {
	GPUs []*cuda.Backend
	Open func(gpus []*cuda.Backend) ([]*peer.Rank, error)
}

// Peers is package peer's.
func Peers(gpus []*cuda.Backend) Transport { return Transport{gpus, peer.Open} }

// NCCL is package nccl's, for the ranks of this process.
func NCCL(gpus []*cuda.Backend, o nccl.Options) Transport {
	return Transport{gpus, func(list []*cuda.Backend) ([]*peer.Rank, error) {
		control, err := ring.Local(len(list))
		if err != nil {
			return nil, err
		}
		return together(list, func(i int, gpu *cuda.Backend) (*peer.Rank, error) {
			return nccl.Open(context.Background(), control[i], gpu, o)
		})
	}}
}

// Launched is package nccl's for ranks that have nothing but that. The environment must have
// NCCL_COMM_ID.
func Launched(gpus []*cuda.Backend, o nccl.Options) Transport {
	return Transport{gpus, func(list []*cuda.Backend) ([]*peer.Rank, error) {
		return together(list, func(i int, gpu *cuda.Backend) (*peer.Rank, error) {
			return nccl.OpenLaunched(context.Background(), ring.Launch{Rank: i, Size: len(list)}, gpu, o)
		})
	}}
}

// together opens ranks at the same time.
func together(list []*cuda.Backend, open func(i int, gpu *cuda.Backend) (*peer.Rank, error)) ([]*peer.Rank, error) {
	ranks, errs := make([]*peer.Rank, len(list)), make([]error, len(list))
	var done sync.WaitGroup
	for i, gpu := range list {
		done.Go(func() { ranks[i], errs[i] = open(i, gpu) })
	}
	done.Wait()
	return ranks, errors.Join(errs...)
}

// Each runs f on every rank of a group and returns their errors.
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

// one computes on one GPU, by the kernel that it takes, arguments that lie on the host.
type one struct{ rank *peer.Rank }

func (o one) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return o.run(ctx, p, flashkit.PassForward, args)
}

func (o one) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return o.run(ctx, p, flashkit.PassBackward, args)
}

func (o one) run(ctx context.Context, p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args) (err error) {
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

// Problems computes random problems, both passes, on groups of several sizes, in order and not,
// on GPUs or a stand-in for them.
func Problems(t *testing.T, tr Transport, sizes []int, seed uint64, n int, standIn bool) {
	alone, err := peer.Open(tr.GPUs[:1])
	require.NoError(t, err)
	defer func() { require.NoError(t, alone[0].Close()) }()
	for i := range n {
		c, err := ringtest.New(t.Context(), seed, uint64(i), one{alone[0]})
		require.NoError(t, err)
		for _, size := range sizes {
			if c.Merges = 0; standIn {
				c.Merges = 2 * size // a zig-zag share is two parts of each rank
			}
			for _, ordered := range []bool{false, true} {
				errs := Each(t, tr, size, func(r *peer.Rank) error { return check(t.Context(), c, r, ordered) })
				if err := errors.Join(errs...); err != nil {
					t.Errorf("case %d of seed %d, %d ranks, ordered %v: %v", i, seed, size, ordered, err)
				}
			}
		}
	}
}

func check(ctx context.Context, c *ringtest.Case, r *peer.Rank, ordered bool) (err error) {
	var x *peer.Args
	defer func() {
		if x != nil {
			err = errors.Join(err, x.Free())
		}
	}()
	return c.CheckPlaced(ctx, r, r, ordered, func(shard *flashkit.Args) (*flashkit.Args, func(flashkit.Pass) error, error) {
		if x, err = r.Upload(shard); err != nil {
			return nil, nil, err
		}
		return x.Args, func(pass flashkit.Pass) error { return x.Download(c.Problem, pass, shard) }, nil
	})
}

// A faulty rank does something before some call of a kernel.
type faulty struct {
	ring.Device
	calls int
	fault func() error
}

func (f *faulty) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	if f.calls--; f.calls < 0 {
		if err := f.fault(); err != nil {
			return err
		}
	}
	return f.Device.Forward(ctx, p, args)
}

// attend computes a forward pass of a small problem on a rank, by the Device d.
func attend(ctx context.Context, r *peer.Rank, d ring.Device, name string, o ring.Options) (err error) {
	p, err := flashkit.ParseProblem(name)
	if err != nil {
		return err
	}
	cut, err := ring.NewCut(p, nil, r.Size(), false)
	if err != nil {
		return err
	}
	shard, err := cut.Shard(r.Rank(), flashkit.NewArgs(p, flashkit.PassForward))
	if err != nil {
		return err
	}
	x, err := r.Upload(shard)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Free()) }()
	ranks, err := ring.New(d, d, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ranks.Close()) }()
	return ranks.Forward(ctx, p, x.Args)
}

const small = "b1-h2-g1-n96-m96-d16-f32"

var errFault = errors.New("the fault of a test")

// Faults makes ranks fail, and looks at what the others say and what remains: a group that is
// opened after each of them works.
func Faults(t *testing.T, tr Transport) {
	works := func(t *testing.T) {
		for _, err := range Each(t, tr, 3, func(r *peer.Rank) error { return attend(t.Context(), r, r, small, ring.Options{}) }) {
			require.NoError(t, err)
		}
	}
	for calls := range 2 {
		for pass := range 2 {
			t.Run(fmt.Sprintf("fails in step %d of pass %d", calls, pass), func(t *testing.T) {
				fails(t, tr, calls, pass)
				works(t)
			})
		}
	}
	t.Run("never comes", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		begin := time.Now()
		for i, err := range Each(t, tr, 3, func(r *peer.Rank) error {
			if r.Rank() == 1 {
				<-ctx.Done()
				return nil
			}
			return attend(ctx, r, r, small, ring.Options{})
		}) {
			require.Equal(t, i == 1, err == nil)
		}
		require.Less(t, time.Since(begin), 2*time.Second)
		works(t)
	})
	for pass := range 2 {
		t.Run(fmt.Sprintf("hangs in pass %d", pass), func(t *testing.T) {
			Hangs(t, tr, pass)
			works(t)
		})
	}
	t.Run("differs", func(t *testing.T) {
		for _, err := range Each(t, tr, 3, func(r *peer.Rank) error {
			name := small
			if r.Rank() == 2 {
				name += "-causal"
			}
			return attend(t.Context(), r, r, name, ring.Options{})
		}) {
			require.ErrorContains(t, err, "rank 2")
		}
		works(t)
	})
	t.Run("ends", func(t *testing.T) {
		times := 50
		if testing.Short() {
			times = 5
		}
		for range times {
			for _, err := range Each(t, tr, 8, func(r *peer.Rank) error {
				return attend(t.Context(), r, r, "b1-h1-g1-n33-m33-d8-f32-causal", ring.Options{})
			}) {
				require.NoError(t, err)
			}
		}
	})
	t.Run("is slow", func(t *testing.T) { slow(t, tr) })
}

// goodPasses computes passes without a fault, after which the ranks have exchanged messages before.
func goodPasses(ctx context.Context, r *peer.Rank, n int) error {
	for range n {
		if err := attend(ctx, r, r, small, ring.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// fails lets a rank fail in a step of a pass. The others wait for that in the same step, as who has all
// it needs would end well: of four ranks they still need one message.
func fails(t *testing.T, tr Transport, step, pass int) {
	begin, failed := time.Now(), make(chan struct{})
	for i, err := range Each(t, tr, 4, func(r *peer.Rank) error {
		if err := goodPasses(t.Context(), r, pass); err != nil {
			return err
		}
		if r.Rank() == 1 {
			defer close(failed)
			return attend(t.Context(), r, &faulty{r, step, func() error { return errFault }}, small, ring.Options{})
		}
		return attend(t.Context(), r, &faulty{r, step, func() error { <-failed; return nil }}, small, ring.Options{})
	}) {
		var e *ring.RankError
		if require.ErrorAs(t, err, &e, "rank %d", i); e.Rank != 1 || !errors.Is(err, errFault) {
			t.Errorf("rank %d says %v", i, err)
		}
	}
	require.Less(t, time.Since(begin), 2*time.Second)
}

// Hangs lets a rank stop in mid-step of a pass: the others end at the deadline.
func Hangs(t *testing.T, tr Transport, pass int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	for _, err := range Each(t, tr, 3, func(r *peer.Rank) error {
		if err := goodPasses(ctx, r, pass); err != nil {
			return err
		}
		d := ring.Device(r)
		if r.Rank() == 1 {
			d = &faulty{r, 0, func() error { <-ctx.Done(); time.Sleep(300 * time.Millisecond); return nil }}
		}
		return attend(ctx, r, d, small, ring.Options{})
	}) {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.Less(t, time.Since(begin), 4*time.Second)
}

// slow lets a rank take its time: the others wait, and say so.
func slow(t *testing.T, tr Transport) {
	var mu sync.Mutex
	waited := time.Duration(0)
	o := ring.Options{Progress: func(x ring.Progress) {
		mu.Lock()
		defer mu.Unlock()
		waited = max(waited, x.Waiting)
	}}
	for _, err := range Each(t, tr, 3, func(r *peer.Rank) error {
		d := ring.Device(r)
		if r.Rank() == 1 {
			d = &faulty{r, 0, func() error { time.Sleep(1300 * time.Millisecond); return nil }}
		}
		return attend(t.Context(), r, d, small, o)
	}) {
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, waited, time.Second)
}
