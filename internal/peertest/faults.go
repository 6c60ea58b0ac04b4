package peertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/ringtest"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// A faulty is a rank with a fault. It calls silent before it starts messages. Its first forward
// calls, `calls` in number, run normally. Before each later forward call it calls fault.
type faulty struct {
	ring.Device
	calls  int
	fault  func() error
	silent func() error // called before messages
}

func (f *faulty) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	if f.calls--; f.calls < 0 && f.fault != nil {
		if err := f.fault(); err != nil {
			return err
		}
	}
	return f.Device.Forward(ctx, p, args)
}

func (f *faulty) Start(ctx context.Context, send, receive []ring.Message) error {
	if f.silent != nil {
		if err := f.silent(); err != nil {
			return err
		}
	}
	return f.Device.Start(ctx, send, receive)
}

// forward computes a forward pass of the named problem on rank r through Device d.
func forward(ctx context.Context, r *peer.Rank, d ring.Device, name string, o ring.Options) (err error) {
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

// soon is the time in which all ranks notice a fault. It is less than the time that package ring/nccl
// waits for a rank at the end. Under the race detector the ranks are slow.
func soon() time.Duration {
	if slow.Race {
		return 8 * time.Second
	}
	return 2 * time.Second
}

// mostRanks is the maximum number of ranks in a group without a fault.
const mostRanks = 8

// Faults makes a rank fail, in groups of up to four ranks, and checks the errors of all ranks. A
// group opened after each of these faults must work. Faults also tests groups without a fault, and
// groups with a slow rank.
func Faults(t *testing.T, tr Transport, ranks int) {
	few := min(3, ranks)
	fault := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			f(t)
			for _, err := range Each(t, tr, few, func(r *peer.Rank) error { return forward(t.Context(), r, r, small, ring.Options{}) }) {
				require.NoError(t, err)
			}
		})
	}
	for pass := range 2 {
		fault(fmt.Sprintf("sends nothing in pass %d", pass), func(t *testing.T) { sendsNothing(t, tr, few, pass) })
		for calls := range 2 {
			if ranks < 4 { // with fewer, a rank that has computed a step has sent all its messages
				break
			}
			fault(fmt.Sprintf("fails in step %d of pass %d", calls, pass), func(t *testing.T) { fails(t, tr, calls, pass) })
		}
	}
	fault("never comes", func(t *testing.T) { neverComes(t, tr, few) })
	for pass := range 2 {
		fault(fmt.Sprintf("hangs in pass %d", pass), func(t *testing.T) { Hangs(t, tr, few, pass) })
	}
	for what, c := range map[string][2]string{
		"band":  {small + "-causal", "is in Band"},
		"dtype": {"b1-h2-g1-n96-m96-d16-bf16", "is in DType"},
		"shape": {"b1-h2-g1-n96-m192-d16-f32", "is in KVLen"},
		"heads": {"b1-h4-g1-n96-m96-d16-f32", "is in Heads"},
	} {
		fault("differs in "+what, func(t *testing.T) { differs(t, tr, few, c[0], c[1]) })
	}
	t.Run("ends", func(t *testing.T) { ends(t, tr, min(mostRanks, ranks)) })
	t.Run("is slow", func(t *testing.T) { oneIsSlow(t, tr, few) })
	t.Run("is ten times slower", func(t *testing.T) { slowValues(t, tr, few) })
}

// neverComes makes rank 1 wait until ctx ends, without a pass. The other ranks must return errors
// soon.
func neverComes(t *testing.T, tr Transport, ranks int) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	for i, err := range Each(t, tr, ranks, func(r *peer.Rank) error {
		if r.Rank() == 1 {
			<-ctx.Done()
			return nil
		}
		return forward(ctx, r, r, small, ring.Options{})
	}) {
		require.Equal(t, i == 1, err == nil)
	}
	require.Less(t, time.Since(begin), soon())
}

// differs makes the last rank compute another problem. Every rank's error must name the last rank
// and the field that differs.
func differs(t *testing.T, tr Transport, ranks int, other, field string) {
	for _, err := range Each(t, tr, ranks, func(r *peer.Rank) error {
		name := small
		if r.Rank() == ranks-1 {
			name = other
		}
		return forward(t.Context(), r, r, name, ring.Options{})
	}) {
		require.ErrorContains(t, err, fmt.Sprint("rank ", ranks-1))
		require.ErrorContains(t, err, field)
	}
}

// ends repeatedly opens a group, computes a pass without a fault, and closes the group.
func ends(t *testing.T, tr Transport, ranks int) {
	times := 50
	if testing.Short() {
		times = 5
	}
	for range times {
		for _, err := range Each(t, tr, ranks, func(r *peer.Rank) error {
			return forward(t.Context(), r, r, "b1-h1-g1-n33-m33-d8-f32-causal", ring.Options{})
		}) {
			require.NoError(t, err)
		}
	}
}

// goodPasses computes n passes without a fault. A later pass then uses existing connections.
func goodPasses(ctx context.Context, r *peer.Rank, n int) error {
	for range n {
		if err := forward(ctx, r, r, small, ring.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// fails makes rank 1 of four fail in a step of a pass. The other ranks wait in the same step until
// rank 1 has failed. Then they must return rank 1's error. Rank 1 has started its messages up to step
// step+1, and rank 1+d passes on the messages up to step step+1+d. So ranks at a distance d of at least
// 3-step may get all three messages before they notice the fault, and succeed.
func fails(t *testing.T, tr Transport, step, pass int) {
	begin, failed := time.Now(), make(chan struct{})
	for i, err := range Each(t, tr, 4, func(r *peer.Rank) error {
		if err := goodPasses(t.Context(), r, pass); err != nil {
			return err
		}
		if r.Rank() == 1 {
			defer close(failed)
			return forward(t.Context(), r, &faulty{Device: r, calls: step, fault: func() error { return errFault }}, small, ring.Options{})
		}
		return forward(t.Context(), r, &faulty{Device: r, calls: step, fault: func() error { <-failed; return nil }}, small, ring.Options{})
	}) {
		if distance := (i + 3) % 4; err == nil && i != 1 && distance >= 3-step {
			continue
		}
		var e *ring.RankError
		if require.ErrorAs(t, err, &e, "rank %d", i); e.Rank != 1 || !errors.Is(err, errFault) {
			t.Errorf("rank %d says %v", i, err)
		}
	}
	require.Less(t, time.Since(begin), soon())
}

// sendsNothing makes rank 1 fail while the other ranks wait for its messages. The fault comes after
// the given number of passes without a fault. After 0 passes, the other ranks wait on the host,
// else on the GPU.
func sendsNothing(t *testing.T, tr Transport, ranks, pass int) {
	var failed time.Time
	for i, err := range Each(t, tr, ranks, func(r *peer.Rank) error {
		if err := goodPasses(t.Context(), r, pass); err != nil || r.Rank() != 1 {
			return cmp.Or(err, forward(t.Context(), r, r, small, ring.Options{}))
		}
		return forward(t.Context(), r, &faulty{Device: r, silent: func() error {
			time.Sleep(100 * time.Millisecond)
			failed = time.Now()
			return errFault
		}}, small, ring.Options{})
	}) {
		var e *ring.RankError
		if require.ErrorAs(t, err, &e, "rank %d", i); e.Rank != 1 || !errors.Is(err, errFault) {
			t.Errorf("rank %d says %v", i, err)
		}
	}
	require.Less(t, time.Since(failed), soon())
}

// Hangs makes rank 1 stop in a pass until after the deadline. All ranks must then return the error
// of the deadline. The texts of the other ranks' errors must name rank 1.
func Hangs(t *testing.T, tr Transport, ranks, pass int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	errs := Each(t, tr, ranks, func(r *peer.Rank) error {
		if err := goodPasses(ctx, r, pass); err != nil {
			return err
		}
		d := ring.Device(r)
		if r.Rank() == 1 {
			d = &faulty{Device: r, silent: func() error { <-ctx.Done(); time.Sleep(300 * time.Millisecond); return nil }}
		}
		return forward(ctx, r, d, small, ring.Options{})
	})
	require.Less(t, time.Since(begin), 2*time.Second+soon())
	for i, err := range errs {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if i != 1 {
			require.Regexp(t, `rank (\d+ or )*1( or \d+)*: `, err.Error())
		}
	}
}

// oneIsSlow delays rank 1. The other ranks must wait without an error, and report the time in Progress.
func oneIsSlow(t *testing.T, tr Transport, ranks int) {
	var mu sync.Mutex
	waited := time.Duration(0)
	o := ring.Options{Progress: func(x ring.Progress) {
		mu.Lock()
		defer mu.Unlock()
		waited = max(waited, x.Waiting)
	}}
	for _, err := range Each(t, tr, ranks, func(r *peer.Rank) error {
		d := ring.Device(r)
		if r.Rank() == 1 {
			d = &faulty{Device: r, silent: func() error { time.Sleep(1300 * time.Millisecond); return nil }}
		}
		return forward(t.Context(), r, d, small, o)
	}) {
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, waited, time.Second)
}

// slowCall is the delay of a slow rank's calls. It exceeds ten times the calls' own time.
const slowCall = 20 * time.Millisecond

// A slowRank is a rank whose calls are late.
type slowRank struct{ ring.Device }

func (s slowRank) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	time.Sleep(slowCall)
	return s.Device.Forward(ctx, p, args)
}

func (s slowRank) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	time.Sleep(slowCall)
	return s.Device.Backward(ctx, p, args)
}

func (s slowRank) Start(ctx context.Context, send, receive []ring.Message) error {
	time.Sleep(slowCall)
	return s.Device.Start(ctx, send, receive)
}

// slowValues compares the results of a group, in which rank 1 is slow, with one GPU's results.
func slowValues(t *testing.T, tr Transport, ranks int) {
	alone, err := peer.Open(tr.GPUs[:1])
	require.NoError(t, err)
	defer func() { require.NoError(t, alone[0].Close()) }()
	for i := range uint64(4) {
		c, err := ringtest.New(t.Context(), 61, i, singleGPU{alone[0]})
		require.NoError(t, err)
		c.Merges = 2 * ranks // stand-ins need it, GPUs do not
		for _, err := range Each(t, tr, ranks, func(r *peer.Rank) error {
			d := ring.Device(r)
			if r.Rank() == 1 {
				d = slowRank{r}
			}
			return check(t.Context(), c, r, d, false)
		}) {
			require.NoError(t, err)
		}
	}
}
