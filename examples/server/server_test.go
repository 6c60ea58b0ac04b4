package main

import (
	"context"
	"io"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/admission"
)

// Single and shared calls give the right numbers.
func TestAnswers(t *testing.T) {
	s := start(t, cpu(t), roomy)
	var clients sync.WaitGroup
	for i := range 20 {
		x := answered(t, []string{"b1-h8-g2-n1-m100-d64-f32", "b1-h2-g1-n33-m40-d16-dv8-f32-causal-scale0.5"}[i%2])
		clients.Go(func() {
			if o, err := inProcess(t.Context(), s, x); err != nil {
				t.Error(err)
			} else if diff := x.differ(o); diff != "" {
				t.Error(diff)
			}
		})
	}
	clients.Wait()
}

// A gate is an attention whose calls wait until it opens. It predicts a millisecond per key.
type gate struct {
	open    chan struct{}
	entered chan flashkit.Problem
	then    func() // the call's last action
}

func newGate() *gate {
	return &gate{open: make(chan struct{}), entered: make(chan flashkit.Problem, 100), then: func() {}}
}

func (g *gate) Pick(flashkit.Problem, flashkit.Pass) (flashkit.Kernel, error) {
	return flashkit.Kernel{Cost: func(c *flashkit.Call) time.Duration { return time.Duration(c.KVLen) * time.Millisecond }}, nil
}

func (g *gate) Forward(ctx context.Context, p flashkit.Problem, _ *flashkit.Args) error {
	g.entered <- p
	select {
	case <-g.open:
		g.then()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keys returns a request that a gate predicts to take n milliseconds.
func keys(t testing.TB, n int) *sample {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: n, Dim: 1, VDim: 1}
	return newSample(t, p.String())
}

// crowd sends requests in goroutines, each after the previous one was admitted.
type crowd struct {
	sync.WaitGroup
	t *testing.T
	s *Server
}

func (c *crowd) ask(x *sample, patience time.Duration, check func(error)) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	t, err := c.s.Admit(ctx, x.p)
	require.NoError(c.t, err)
	c.Go(func() {
		defer cancel()
		defer t.Close()
		_, err := t.Attend(x.q, x.k, x.v)
		check(err)
	})
}

func (c *crowd) answered(err error) {
	if err != nil {
		c.t.Error(err)
	}
}

func TestRequestsShareACall(t *testing.T) {
	g := newGate()
	limits := roomy
	limits.Batch, limits.Copied = 3, 4*(1+2*5)
	s := start(t, g, limits)
	c := crowd{t: t, s: s}
	c.ask(keys(t, 1), time.Minute, c.answered)
	<-g.entered
	for _, n := range []int{5, 4, 5, 5, 5} {
		c.ask(keys(t, n), 30*time.Second, c.answered)
	}
	c.ask(keys(t, 3), 31*time.Second, c.answered)
	settle(t, func() bool { return s.State().Ready == 6 })
	close(g.open)
	c.Wait()
	for _, want := range [][2]int{{3, 5}, {1, 4}, {1, 5}, {1, 3}} {
		p := <-g.entered
		require.Equal(t, want, [2]int{p.Batch, p.KVLen})
	}
	require.Empty(t, g.entered)
}

// A request that does not fit or would be late is rejected at once, by predictions.
func TestRefusals(t *testing.T) {
	g := newGate()
	limits := roomy
	limits.Requests, limits.Bytes, limits.Request = 3, 4e6, 3e6
	s := start(t, g, limits)
	refused := func(seconds int, patience time.Duration, want error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1000 * seconds, Dim: 1, VDim: 1}
		ticket, err := s.Admit(ctx, p)
		require.ErrorIs(t, err, want)
		require.Nil(t, ticket)
	}
	refused(300, 200*time.Second, admission.ErrLate)
	refused(400, time.Hour, admission.ErrTooLarge)
	refused(1, 0, admission.ErrMissed)

	c := crowd{t: t, s: s}
	c.ask(keys(t, 100e3), time.Hour, c.answered)
	<-g.entered
	refused(100, 150*time.Second, admission.ErrLate) // behind the running one
	c.ask(keys(t, 290e3), 430*time.Second, c.answered)
	refused(150, time.Hour, admission.ErrBusy)      // of bytes
	refused(60, 400*time.Second, admission.ErrLate) // would be in time, but make another request late
	c.ask(keys(t, 30e3), 400*time.Second, c.answered)
	refused(1, time.Hour, admission.ErrBusy) // of requests
	close(g.open)
	c.Wait()
}

// When every client of a call has gone, the call stops. Its memory counts until then.
func TestClientsThatLeave(t *testing.T) {
	g := newGate() // which never opens
	s := start(t, g, roomy)
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		x := keys(t, 1)
		go func() { _, err := inProcess(ctx, s, x); errs <- err }()
		<-g.entered
		leave()
		require.ErrorIs(t, <-errs, admission.ErrGone)
	}
}

func TestPanic(t *testing.T) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	g := newGate()
	g.then = func() { panic("a defect") }
	close(g.open)
	s := start(t, g, roomy)
	for range 3 { // and the server lives on
		_, err := inProcess(t.Context(), s, keys(t, 1))
		require.ErrorIs(t, err, admission.ErrFailed)
		require.ErrorContains(t, err, "panic in b1-h1-g1-n1-m1-d1-f32")
	}
}

func TestDrain(t *testing.T) {
	g := newGate()
	s := start(t, g, roomy)
	c := crowd{t: t, s: s}
	var answers atomic.Int64
	for _, n := range []int{1, 2, 3, 1000, 1001} {
		c.ask(keys(t, n), time.Minute, func(err error) { c.answered(err); answers.Add(1) })
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Drain(context.Background()) }()
	require.Eventually(t, func() bool { return s.State().Draining }, time.Minute, time.Millisecond)
	_, err := inProcess(t.Context(), s, keys(t, 1))
	require.ErrorIs(t, err, admission.ErrClosed)
	require.Empty(t, ended)
	close(g.open)
	require.NoError(t, <-ended)
	c.Wait()
	require.EqualValues(t, 5, answers.Load())
}

func TestTensorsOfAnotherLength(t *testing.T) {
	s := start(t, newGate(), roomy)
	for name, cut := range map[string]func(*sample){
		"Q.len = 0": func(x *sample) { x.q = nil }, "K.len = 4": func(x *sample) { x.k = x.k[1:] }, "V.len = 6": func(x *sample) { x.v = append(x.v, 1) }} {
		x := keys(t, 5)
		cut(x)
		_, err := inProcess(t.Context(), s, x)
		require.ErrorIs(t, err, admission.ErrBad)
		require.ErrorContains(t, err, name)
	}
}
