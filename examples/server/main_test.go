package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

func Example() {
	if err := serve(context.Background(), os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// client 7 had no time left
	// 23 clients were answered
	// afterwards: the server is closed
}

// start runs a server until the test ends.
func start(t *testing.T, a attention, l Limits) *Server {
	s := NewServer(a, l)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); work.Wait() })
	return s
}

var roomy = Limits{Calls: 2, Queue: 100, Batch: 8, Wait: time.Millisecond, Timeout: time.Minute}

// In a batch or alone, the numbers are the same.
func TestAnswers(t *testing.T) {
	d := dispatch.New(simd.New())
	defer d.Close()
	s := start(t, d, roomy)
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			r := decode(100+i%2, uint64(i))
			p := r.Problem
			want := make([]float32, size(p.OShape()))
			if err := d.Forward(t.Context(), p, &flashkit.Forward{Q: tensor(r.Q, p.QShape()), K: tensor(r.K, p.KShape()),
				V: tensor(r.V, p.VShape()), O: tensor(want, p.OShape())}); err != nil {
				t.Error(err)
			}
			got, err := s.Attend(t.Context(), r)
			if err != nil {
				t.Error(err)
			} else if diff := distance(got, want); diff > 1e-5 {
				t.Errorf("request %d is off by %g", i, diff)
			}
		})
	}
	clients.Wait()
}

func distance(x, y []float32) (worst float32) {
	for i := range y {
		worst = max(worst, x[i]-y[i], y[i]-x[i])
	}
	return worst
}

// A gate is an attention whose calls wait until it opens.
type gate struct {
	open          chan struct{}
	entered       chan flashkit.Problem
	now, together atomic.Int64
}

func newGate() *gate {
	return &gate{open: make(chan struct{}), entered: make(chan flashkit.Problem, 100)}
}

func (g *gate) Forward(ctx context.Context, p flashkit.Problem, _ *flashkit.Forward) error {
	now := g.now.Add(1)
	defer g.now.Add(-1)
	for most := g.together.Load(); now > most && !g.together.CompareAndSwap(most, now); most = g.together.Load() {
	}
	g.entered <- p
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestLimitOnCalls(t *testing.T) {
	g := newGate()
	s := start(t, g, Limits{Calls: 2, Queue: 100, Batch: 1, Wait: time.Millisecond, Timeout: time.Minute})
	var clients sync.WaitGroup
	for i := range 10 {
		clients.Go(func() {
			if _, err := s.Attend(t.Context(), decode(1, uint64(i))); err != nil {
				t.Error(err)
			}
		})
	}
	<-g.entered
	<-g.entered
	close(g.open)
	clients.Wait()
	require.EqualValues(t, 2, g.together.Load())
}

func TestRequestsShareACall(t *testing.T) {
	g := newGate()
	close(g.open)
	s := NewServer(g, Limits{Calls: 1, Queue: 100, Batch: 3, Wait: time.Minute, Timeout: time.Minute})
	var clients sync.WaitGroup
	for _, keys := range []int{5, 5, 6} {
		clients.Go(func() {
			if _, err := s.Attend(t.Context(), decode(keys, 0)); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return len(s.queue) == 3 }, time.Minute, time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { s.Run(ctx) })
	clients.Wait()
	stop()
	work.Wait()
	batches := map[int]int{}
	for range 2 {
		p := <-g.entered
		batches[p.KVLen] = p.Batch
	}
	require.Equal(t, map[int]int{5: 2, 6: 1}, batches)
	require.Empty(t, g.entered)
}

func TestFullQueue(t *testing.T) {
	s := NewServer(newGate(), Limits{Queue: 1}) // and nobody runs it
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err := s.Attend(gone, decode(1, 0))
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Attend(t.Context(), decode(1, 0))
	require.ErrorIs(t, err, ErrBusy)
}

// When every client of a call has gone, the call stops.
func TestClientsThatLeave(t *testing.T) {
	g := newGate() // which never opens
	s := start(t, g, Limits{Calls: 1, Queue: 10, Batch: 1, Timeout: time.Minute})
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() { _, err := s.Attend(ctx, decode(1, 0)); errs <- err }()
		<-g.entered
		leave()
		require.ErrorIs(t, <-errs, context.Canceled)
	}
}

func TestTimeoutOfACall(t *testing.T) {
	s := start(t, newGate(), Limits{Calls: 1, Queue: 10, Batch: 1, Timeout: time.Millisecond})
	_, err := s.Attend(t.Context(), decode(1, 0))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestBadRequests(t *testing.T) {
	s := NewServer(newGate(), roomy)
	short := decode(5, 0)
	short.K = short.K[1:]
	_, err := s.Attend(t.Context(), short)
	var wrong *flashkit.ProblemError
	require.True(t, errors.As(err, &wrong), "%v", err)
	two := decode(5, 0)
	two.Problem.Batch = 2
	_, err = s.Attend(t.Context(), two)
	require.ErrorContains(t, err, "batch 1")
	require.Empty(t, s.queue)
}
