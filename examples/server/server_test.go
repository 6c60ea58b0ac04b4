package main

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
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
	then    func() // what a call does after
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

// crowd sends requests in goroutines, each after the previous one waits.
type crowd struct {
	sync.WaitGroup
	t *testing.T
	s *Server
}

func (c *crowd) ask(x *sample, patience time.Duration, check func(error)) {
	t, err := c.s.Admit(c.t.Context(), x.p)
	require.NoError(c.t, err)
	t.deadline = time.Now().Add(patience)
	t.due = t.deadline
	c.s.mu.Lock()
	t.lane.remove(t)
	t.lane.insert(t)
	c.s.mu.Unlock()
	c.Go(func() {
		defer t.Close()
		_, err := t.Attend(x.q, x.k, x.v)
		check(err)
	})
	require.Eventually(c.t, func() bool { c.s.mu.Lock(); defer c.s.mu.Unlock(); return t.ready }, time.Minute, time.Millisecond)
}

func (c *crowd) answered(err error) {
	if err != nil {
		c.t.Error(err)
	}
}

// Each lane computes one call at a time, by deadline. A short request is answered during a long
// one.
func TestOrder(t *testing.T) {
	g := newGate()
	limits := roomy
	limits.Batch = 1
	s := start(t, g, limits)
	c := crowd{t: t, s: s}
	c.ask(keys(t, 1000), time.Minute, c.answered)
	require.Equal(t, 1000, (<-g.entered).KVLen)
	c.ask(keys(t, 1), time.Minute, c.answered)
	require.Equal(t, 1, (<-g.entered).KVLen)
	for i, patience := range []int{40, 30, 50} {
		c.ask(keys(t, 10+i), time.Duration(patience)*time.Second, c.answered)
		c.ask(keys(t, 2+i), time.Duration(patience)*time.Second, c.answered)
	}
	require.Empty(t, g.entered)
	close(g.open)
	c.Wait()
	var short, long []int
	for len(g.entered) > 0 {
		if n := (<-g.entered).KVLen; n < 10 {
			short = append(short, n)
		} else {
			long = append(long, n)
		}
	}
	require.Equal(t, []int{3, 2, 4}, short)
	require.Equal(t, []int{11, 10, 12}, long)
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
	refused(300, 200*time.Second, ErrLate)
	refused(400, time.Hour, ErrTooLarge)
	refused(1, 0, ErrMissed)

	c := crowd{t: t, s: s}
	c.ask(keys(t, 100e3), time.Hour, c.answered)
	<-g.entered
	refused(100, 150*time.Second, ErrLate) // behind the running one
	c.ask(keys(t, 290e3), 430*time.Second, c.answered)
	refused(150, time.Hour, ErrBusy)      // of bytes
	refused(60, 400*time.Second, ErrLate) // would be in time, but make another request late
	c.ask(keys(t, 30e3), 400*time.Second, c.answered)
	refused(1, time.Hour, ErrBusy) // of requests
	close(g.open)
	c.Wait()
}

// A request that waited too long is not computed.
func TestDeadlineInTheQueue(t *testing.T) {
	g := newGate()
	s := start(t, g, roomy)
	c := crowd{t: t, s: s}
	c.ask(keys(t, 1), time.Minute, c.answered)
	<-g.entered
	c.ask(keys(t, 3), time.Nanosecond, func(err error) {
		if !errors.Is(err, ErrMissed) {
			t.Error(err)
		}
	})
	close(g.open)
	c.Wait()
	require.Empty(t, g.entered)
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
		require.ErrorIs(t, <-errs, ErrGone)
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
		require.ErrorIs(t, err, ErrFailed)
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
	require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.draining }, time.Minute, time.Millisecond)
	_, err := inProcess(t.Context(), s, keys(t, 1))
	require.ErrorIs(t, err, ErrClosed)
	require.Empty(t, ended)
	close(g.open)
	require.NoError(t, <-ended)
	c.Wait()
	require.EqualValues(t, 5, answers.Load())
}

// A drain past its limit stops the running calls, and returns the number of unanswered requests.
func TestDrainInHaste(t *testing.T) {
	g := newGate() // which never opens
	s := start(t, g, roomy)
	c := crowd{t: t, s: s}
	for _, n := range []int{1, 2, 1000} {
		c.ask(keys(t, n), time.Minute, func(err error) {
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	<-g.entered
	limit, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorContains(t, s.Drain(limit), "were not answered")
	c.Wait()
}

// An estimate follows samples, up sooner than down, and is forgotten.
func TestEstimate(t *testing.T) {
	e := estimate{normal: 1, most: 32}
	now := time.Now()
	require.Equal(t, 1.0, e.at(now))
	e.learn(9, now)
	require.Equal(t, 5.0, e.at(now))
	e.learn(1, now)
	require.Equal(t, 4.5, e.at(now))
	require.Equal(t, 2.75, e.at(now.Add(time.Second)))
	e.learn(1e9, now.Add(time.Hour))
	require.Equal(t, 16.5, e.at(now.Add(time.Hour)))
}

// A lane admits by learned pace and expected arrivals.
func TestPace(t *testing.T) {
	l, now := newLane(&sync.Mutex{}), time.Now()
	due := now.Add(2 * time.Millisecond)
	x := &Ticket{cost: time.Millisecond, deadline: due, due: due}
	require.True(t, l.admits(x, now))
	l.pace.learn(9, now)
	require.False(t, l.admits(x, now))
	l.pace = estimate{normal: 1}
	l.busy, l.free = true, now.Add(500*time.Microsecond)
	require.True(t, l.admits(x, now))
	l.free = due
	require.False(t, l.admits(x, now))
	l.busy, x.readable = false, due
	require.False(t, l.admits(x, now))
}

// Concurrent bodies share the bandwidth. Small bodies and idle times are not measured.
func TestArrivals(t *testing.T) {
	const mega = 4 << 20
	a := arrivals{slowness: estimate{most: 100}}
	now := time.Now()
	require.Equal(t, now, a.expect(100*mega, now), "nothing is known")
	require.Zero(t, a.add(1000, now))
	require.EqualValues(t, 2*mega, a.add(2*mega, now))
	require.EqualValues(t, 4*mega, a.add(4*mega, now))
	now = now.Add(mega * 4)
	a.arrived(mega, now)
	require.Equal(t, 2.0, a.slowness.at(now))
	require.Equal(t, now.Add(2*(5+3)*mega), a.expect(3*mega, now))
	require.Equal(t, now, a.expect(3, now))
	a.arrived(5*mega, now.Add(time.Second))
	require.Zero(t, a.unread)
	now = now.Add(time.Hour)
	require.Zero(t, a.slowness.at(now))
	a.add(mega, now)
	now = now.Add(mega * 4)
	a.arrived(mega, now)
	require.Equal(t, 2.0, a.slowness.at(now), "an idle hour tells nothing")
	a.add(mega, now)
	now = now.Add(time.Hour)
	a.arrived(mega, now)
	require.Equal(t, 50.0, a.slowness.at(now), "of the most")
}

func TestTensorsOfAnotherLength(t *testing.T) {
	s := start(t, newGate(), roomy)
	for name, cut := range map[string]func(*sample){
		"Q.len = 0": func(x *sample) { x.q = nil }, "K.len = 4": func(x *sample) { x.k = x.k[1:] }, "V.len = 6": func(x *sample) { x.v = append(x.v, 1) }} {
		x := keys(t, 5)
		cut(x)
		_, err := inProcess(t.Context(), s, x)
		require.ErrorIs(t, err, ErrBad)
		require.ErrorContains(t, err, name)
	}
}
