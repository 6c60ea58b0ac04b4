package ring_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/peertest"
	"github.com/flashkit-go/flashkit/internal/ringtest"
	"github.com/flashkit-go/flashkit/ring"
)

// each runs f on every rank of a group in this process and returns their errors.
func each(t *testing.T, ranks int, f func(g ring.Group) error) []error {
	groups, err := ring.Local(ranks)
	require.NoError(t, err)
	errs := make([]error, ranks)
	var done sync.WaitGroup
	for i, g := range groups {
		done.Go(func() { errs[i] = f(g) })
	}
	done.Wait()
	for _, g := range groups {
		require.NoError(t, g.Close())
	}
	return errs
}

// frozen returns a dispatcher that always picks the same kernels.
func frozen(t *testing.T) *dispatch.Dispatcher {
	d := dispatch.New(simd.New())
	t.Cleanup(func() { d.Close() })
	return d.Frozen()
}

func TestRandomProblems(t *testing.T) {
	d, n, seed := frozen(t), 40, peertest.Seed(t)
	if !testing.Short() {
		n = 200
	}
	for i := range n {
		c, err := ringtest.New(t.Context(), seed, uint64(i), d)
		require.NoError(t, err)
		for _, ranks := range []int{1, 2, 3, 4, 5, 8} {
			for _, ordered := range []bool{false, true} {
				errs := each(t, ranks, func(g ring.Group) error { return c.Check(t.Context(), g, d, ordered) })
				require.NoError(t, errors.Join(errs...), "case %d, FLASHKIT_SEED=%d, %d ranks", i, seed, ranks)
			}
		}
	}
}

// small returns a problem and this rank's arguments.
func small(t *testing.T, name string, g ring.Group) (flashkit.Problem, *flashkit.Args) {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	cut, err := ring.NewCut(p, nil, g.Size(), false)
	require.NoError(t, err)
	shard, err := cut.Shard(g.Rank(), flashkit.NewArgs(p, flashkit.PassForward))
	require.NoError(t, err)
	return p, shard
}

// Ranks send each other one message per sequence, more than a line holds, before either receives.
func TestManyMessages(t *testing.T) {
	const messages = 40
	for rank, err := range each(t, 2, func(g ring.Group) error {
		var send, receive []ring.Message
		got := make([][]float32, messages)
		for i := range messages {
			got[i] = make([]float32, 1)
			send = append(send, ring.Message{Peer: 1 - g.Rank(), Tensors: []flashkit.Tensor{flashkit.F32([]float32{float32(i)}, 1, 1, 1, 1)}})
			receive = append(receive, ring.Message{Peer: 1 - g.Rank(), Tensors: []flashkit.Tensor{flashkit.F32(got[i], 1, 1, 1, 1)}})
		}
		for range 3 {
			if err := errors.Join(g.Start(t.Context(), send, receive), g.Wait(t.Context())); err != nil {
				return err
			}
			for i := range got {
				if got[i][0] != float32(i) {
					return fmt.Errorf("message %d is %v", i, got[i][0])
				}
				got[i][0] = -1
			}
		}
		return nil
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
}

// A tensor without elements may have any strides.
func TestNoElements(t *testing.T) {
	p, err := flashkit.ParseProblem("b2-h2-g1-n5-m0-d4-f32-mask")
	require.NoError(t, err)
	for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		args := flashkit.NewArgs(p, pass)
		args.Mask, args.K = args.Mask.WithStrides(-700, -50, -3), args.K.WithStrides(math.MinInt>>23, 7, math.MaxInt>>13)
		require.NoError(t, overRanks(t.Context(), frozen(t), 3, ring.Options{}, p, pass, args), pass)
	}
}

// A differing request is an error on all ranks, and the Rings stay usable.
func TestDisagreement(t *testing.T) {
	d := frozen(t)
	for _, c := range []struct {
		name, says string
		change     func(p *flashkit.Problem, args *flashkit.Args)
	}{
		{"band", "Q.shape", func(p *flashkit.Problem, _ *flashkit.Args) { p.Band = flashkit.Band{} }},
		{"feature", "is in Score.Softcap", func(p *flashkit.Problem, _ *flashkit.Args) { p.Score.Softcap = 2 }},
		{"dtype", "dtype", func(p *flashkit.Problem, _ *flashkit.Args) { p.DType = flashkit.BFloat16 }},
		{"rows", "is in QLen", func(p *flashkit.Problem, _ *flashkit.Args) { p.QLen, p.KVLen = 12, 12 }},
		{"shape", "K.shape", func(_ *flashkit.Problem, args *flashkit.Args) { args.K = flashkit.F32(make([]float32, 8), 1, 1, 1, 8) }},
		{"tensor", "V", func(_ *flashkit.Problem, args *flashkit.Args) { args.V = flashkit.Tensor{} }},
		{"arguments", "is in Score.Dropout", func(p *flashkit.Problem, _ *flashkit.Args) { p.Score.Dropout = .25 }},
		{"seed", "seed 1", func(_ *flashkit.Problem, args *flashkit.Args) { args.Seed = 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			errs := each(t, 3, func(g ring.Group) error {
				r, err := ring.New(g, d, ring.Options{})
				if err != nil {
					return err
				}
				defer r.Close()
				p, args := small(t, "b1-h2-g1-n9-m9-d8-f32-causal-dropout0.5", g)
				right, rightArgs := p, *args
				if g.Rank() == 1 {
					c.change(&p, args)
				}
				if err = r.Forward(t.Context(), p, args); err == nil {
					return errors.New("no error")
				}
				if r.Stats().Sent != 0 {
					return errors.New("something was sent")
				}
				if again := r.Forward(t.Context(), right, &rightArgs); again != nil {
					return fmt.Errorf("the Ring is broken: %w", again)
				}
				return err
			})
			for rank, err := range errs {
				var of *ring.RankError
				require.ErrorContains(t, err, c.says, "rank %d", rank)
				if rank == 1 && !errors.As(err, &of) {
					continue // its own error, of another type
				}
				require.ErrorAs(t, err, &of, "rank %d: %v", rank, err)
				require.Equal(t, 1, of.Rank, "rank %d: %v", rank, err)
			}
		})
	}
}

// failing is a runner that fails on one rank.
type failing struct {
	ring.Runner
	err error
}

func (f failing) Forward(context.Context, flashkit.Problem, *flashkit.Args) error { return f.err }

func TestFaults(t *testing.T) {
	d := frozen(t)
	broken := errors.New("the kernel failed")
	begin := time.Now()
	errs := each(t, 4, func(g ring.Group) error {
		run := ring.Runner(d)
		if g.Rank() == 2 {
			run = failing{d, broken}
		}
		r, err := ring.New(g, run, ring.Options{})
		require.NoError(t, err)
		defer r.Close()
		p, args := small(t, "b1-h2-g1-n40-m40-d8-f32", g)
		return r.Forward(t.Context(), p, args)
	})
	for rank, err := range errs {
		var of *ring.RankError
		require.ErrorAs(t, err, &of, "rank %d", rank)
		require.Equal(t, 2, of.Rank)
		require.ErrorIs(t, err, broken)
	}
	require.Less(t, time.Since(begin), time.Minute, "it hung")
}

// One rank never comes: the others end at their deadline with an error.
func TestDeadline(t *testing.T) {
	d := frozen(t)
	errs := each(t, 3, func(g ring.Group) error {
		if g.Rank() == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		r, err := ring.New(g, d, ring.Options{})
		require.NoError(t, err)
		defer r.Close()
		p, args := small(t, "b1-h2-g1-n40-m40-d8-f32", g)
		return r.Forward(ctx, p, args)
	})
	for _, err := range errs[1:] {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "waits for rank 0")
	}
}

// slow waits for permission to run.
type slow struct {
	ring.Runner
	let chan struct{}
}

func (s slow) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	<-s.let
	return s.Runner.Forward(ctx, p, args)
}

// Ranks wait for a slow rank and report it.
func TestSlowRank(t *testing.T) {
	d := frozen(t)
	let := make(chan struct{})
	errs := each(t, 2, func(g ring.Group) error {
		run, o := ring.Runner(d), ring.Options{}
		var once sync.Once
		if g.Rank() == 1 {
			run = slow{d, let}
		} else {
			o.Progress = func(p ring.Progress) {
				if p.Waiting > 0 && p.From == 1 {
					once.Do(func() { close(let) }) // nothing else ends the wait
				}
			}
		}
		r, err := ring.New(g, run, o)
		require.NoError(t, err)
		defer r.Close()
		p, args := small(t, "b1-h2-g1-n40-m40-d8-f32", g)
		return r.Forward(t.Context(), p, args)
	})
	require.NoError(t, errors.Join(errs...))
}

// Hidden keys do not travel: the bytes of a causal pass, of a window and of short packed sequences.
func TestWhatTravels(t *testing.T) {
	d := frozen(t)
	sent := func(name string, seqs *flashkit.Sequences, pass flashkit.Pass) (bytes, memory int64) {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		whole := p
		if seqs != nil {
			whole.Batch, whole.Ragged, whole.QLen, whole.KVLen = 1, false, int(seqs.QStarts[p.Batch]), int(seqs.QStarts[p.Batch])
		}
		args := flashkit.NewArgs(whole, pass)
		args.Seqs = seqs
		var mu sync.Mutex
		errs := each(t, 4, func(g ring.Group) error {
			cut, err := ring.NewCut(p, seqs, 4, false)
			require.NoError(t, err)
			shard, err := cut.Shard(g.Rank(), args)
			require.NoError(t, err)
			r, err := ring.New(g, d, ring.Options{})
			require.NoError(t, err)
			defer r.Close()
			if pass == flashkit.PassForward {
				err = r.Forward(t.Context(), p, shard)
			} else {
				err = r.Backward(t.Context(), p, shard)
			}
			mu.Lock()
			defer mu.Unlock()
			bytes += r.Stats().Sent
			memory = max(memory, r.Stats().Memory)
			return err
		})
		require.NoError(t, errors.Join(errs...))
		return bytes, memory
	}
	const shard = 2 * 64 * 16 * 4 // bytes of K and V of 64 keys of one head of 16
	got, memory := sent("b1-h4-g1-n256-m256-d16-f32", nil, flashkit.PassForward)
	require.EqualValues(t, 4*3*shard, got)
	require.EqualValues(t, 2*shard, memory, "two shards beside the rank's own")
	got, _ = sent("b1-h4-g1-n256-m256-d16-f32-causal", nil, flashkit.PassForward)
	require.EqualValues(t, 4*3*shard*3/4, got, "half a shard to those before")
	got, _ = sent("b1-h4-g1-n256-m256-d16-f32-window32.0", nil, flashkit.PassForward)
	require.EqualValues(t, 3*shard/2, got, "the last 32 keys to the rank that follows")
	got, _ = sent("b4-h4-g1-n64-m64-d16-f32-ragged", &flashkit.Sequences{QStarts: []int32{0, 64, 128, 192, 256}, KVStarts: []int32{0, 64, 128, 192, 256}}, flashkit.PassForward)
	require.Zero(t, got)
	// The backward pass computes half of the KV heads at a time. It has keys of two halves and
	// gradients of three: the current half, the previous one and the arriving one; and DQ of one
	// call.
	_, memory = sent("b1-h4-g2-n256-m256-d16-f32", nil, flashkit.PassBackward)
	require.EqualValues(t, (2+3)*shard+2*64*16*4, memory)
	require.LessOrEqual(t, memory-2*64*16*4, int64((2+2)*2*shard), "two shards of keys, two of gradients")
	// One KV head has no halves. Gradients have the problem's type if one call makes all of them.
	_, memory = sent("b1-h4-g1-n256-m256-d16-f32", nil, flashkit.PassBackward)
	require.EqualValues(t, (2+3)*shard+4*64*16*4, memory)
	_, memory = sent("b1-h4-g1-n256-m256-d16-bf16", nil, flashkit.PassBackward)
	require.EqualValues(t, (2+3)*shard/2+shard+4*64*16*(2+4), memory, "and sums in float32 of the rank's own, and of DQ")
	two, memory := sent("b1-h4-g1-n256-m256-d16-bf16-causal", nil, flashkit.PassBackward)
	require.EqualValues(t, 4*3*shard/2*3/4*2, two, "keys there and gradients back, in 16 bits")
	require.Positive(t, memory)
}

// Packed sequences are cut by work: no rank greatly exceeds the mean.
func TestCutByWork(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		p := flashkit.Problem{Batch: 1 + r.IntN(60), Heads: 1, KVHeads: 1, QLen: 4096, KVLen: 4096, Dim: 8, VDim: 8, DType: flashkit.Float32, Band: flashkit.Causal(), Ragged: true}
		starts := []int32{0}
		for b := range p.Batch {
			starts = append(starts, starts[b]+int32(1+r.IntN(4096)>>r.IntN(8)))
		}
		ranks := 1 + r.IntN(8)
		cut, err := ring.NewCut(p, &flashkit.Sequences{QStarts: starts, KVStarts: starts}, ranks, false)
		require.NoError(t, err)
		area := func(s ring.Span) (a float64) {
			for i := s.From; i < s.To; i++ {
				a += float64(i + 1)
			}
			return a
		}
		sum, most, rows := 0.0, 0.0, 0
		for rank := range ranks {
			of := 0.0
			for _, s := range cut.Rows(rank) {
				of += area(s)
				rows += s.To - s.From
			}
			sum += of
			most = max(most, of)
		}
		require.Equal(t, int(starts[p.Batch]), rows)
		require.LessOrEqual(t, most, 1.05*sum/float64(ranks)+8192, "%v over %d ranks", starts, ranks)
	}
}

// idle moves nothing.
type idle struct{}

func (idle) Ready() (ring.Mark, error) { return nil, nil }
func (idle) Move(_, _ []flashkit.Tensor, _, _ ring.Mark) (ring.Mark, error) {
	return nil, nil
}
func (idle) Done(ring.Mark, bool) error { return nil }

// A group of this process reports a failure even to goroutines that do not wait in it.
func TestBreaker(t *testing.T) {
	groups, err := ring.Local(3)
	require.NoError(t, err)
	b := groups[2].(ring.Breaker)
	require.NoError(t, b.Err())
	select {
	case <-b.Broken():
		t.Fatal("broken at once")
	default:
	}
	groups[1].Fail(io.ErrUnexpectedEOF)
	groups[0].Fail(io.EOF) // too late
	<-b.Broken()
	var e *ring.RankError
	require.ErrorAs(t, b.Err(), &e)
	require.Equal(t, 1, e.Rank)
	require.ErrorIs(t, b.Err(), io.ErrUnexpectedEOF)
}

// elsewhere owns memory of no device.
type elsewhere struct{}

func (elsewhere) Device() string { return "device 7" }

// Device tensors need a group for devices: all ranks return an error, and stay usable.
func TestDeviceWithoutItsGroup(t *testing.T) {
	d := frozen(t)
	p, err := flashkit.ParseProblem("b1-h1-g1-n8-m8-d4-f32")
	require.NoError(t, err)
	for _, err := range each(t, 2, func(g ring.Group) error {
		r, err := ring.New(g, d, ring.Options{})
		require.NoError(t, err)
		defer r.Close()
		args := flashkit.NewArgs(p, flashkit.PassForward)
		cut, err := ring.NewCut(p, nil, 2, false)
		require.NoError(t, err)
		shard, err := cut.Shard(g.Rank(), args)
		require.NoError(t, err)
		there := *shard
		for _, x := range []*flashkit.Tensor{&there.Q, &there.K, &there.V, &there.O, &there.LSE} {
			n := x.Shape()
			*x = flashkit.OnDevice(elsewhere{}, x.DType(), 1<<20, x.Len(), n[0], n[1], n[2], n[3])
		}
		refused := r.Forward(t.Context(), p, &there)
		require.NoError(t, r.Forward(t.Context(), p, shard))
		return refused
	}) {
		require.ErrorContains(t, err, "device 7")
	}
}

// A closed rank refuses exchanges instead of waiting for the others.
func TestClosed(t *testing.T) {
	groups, err := ring.Local(2)
	require.NoError(t, err)
	g := groups[0]
	require.NoError(t, g.Close())
	require.ErrorContains(t, g.Gather(t.Context(), make([]byte, 1), make([]byte, 2)), "is closed")
	require.ErrorContains(t, g.Start(t.Context(), nil, nil), "is closed")
}

func TestRefusals(t *testing.T) {
	groups, err := ring.Local(1)
	require.NoError(t, err)
	d := frozen(t)
	_, err = ring.Local(0)
	require.Error(t, err)
	_, err = ring.LocalOver([]ring.Mover{nil, idle{}})
	require.ErrorContains(t, err, "nil for all ranks or for none")
	_, err = ring.New(nil, d, ring.Options{})
	require.Error(t, err)
	_, err = ring.New(groups[0], nil, ring.Options{})
	require.Error(t, err)
	_, err = ring.New(groups[0], failing{}, ring.Options{Ordered: true})
	require.Error(t, err)
	r, err := ring.New(groups[0], d, ring.Options{})
	require.NoError(t, err)
	defer r.Close()
	for name, want := range map[string]string{
		"b1-h2-g1-n4-m4-d8-f32-dropout0.5":    "",
		"b1-h2-g1-n4-m8-d8-f32-ragged-page4":  "paged",
		"b1-h2-g1-n4-m4-d8-f32-softcap1-sink": "",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		err = r.Forward(t.Context(), p, flashkit.NewArgs(p, flashkit.PassForward))
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	var nobody context.Context
	require.Error(t, r.Forward(nobody, flashkit.Problem{}, nil))
	require.Error(t, r.Forward(t.Context(), flashkit.Problem{}, nil))
	require.Error(t, r.Forward(t.Context(), flashkit.Problem{}, new(flashkit.Args)))
}
