package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A task is a job with a predicted time in milliseconds. Its answer is the time's square.
type task int

func (k task) String() string { return fmt.Sprint("task ", int(k)) }

// A gate is work that waits until the gate opens.
type gate struct {
	open    chan struct{}
	entered chan []task
	then    func() error // the call's last action
	batch   int          // maximum number of equal tasks that share a call
}

func newGate(batch int) *gate {
	return &gate{open: make(chan struct{}), entered: make(chan []task, 100), then: func() error { return nil }, batch: batch}
}

func (g *gate) work() Work[task, int] {
	return Work[task, int]{
		Name:  "gate",
		Joins: func(call []task, next task) bool { return next == call[0] && len(call) < g.batch },
		Worker: func() func(context.Context, []task) ([]int, error) {
			return func(ctx context.Context, tasks []task) (squares []int, err error) {
				g.entered <- tasks
				select {
				case <-g.open:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				for _, k := range tasks {
					squares = append(squares, int(k*k))
				}
				return squares, g.then()
			}
		},
	}
}

var roomy = Limits{Connections: 1000, Requests: 100, Bytes: 1 << 30, Timeout: time.Hour, Short: 5 * time.Millisecond}

// start runs a Queue until the test ends, and checks that nothing of it remains.
func start(t testing.TB, g *gate, l Limits) *Queue[task, int] {
	q := New(g.work(), l)
	t.Cleanup(func() {
		soon, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, q.Drain(soon))
		require.Equal(t, State{Draining: true}, q.State())
		settle(t, func() bool { return !strings.Contains(stacks(), "admission.(*Queue") })
	})
	return q
}

// settle waits until goroutines have ended. It counts how often it has looked: a clock goes
// on while a machine stops the process.
func settle(t testing.TB, ended func() bool) {
	for looks := 0; !ended(); looks++ {
		time.Sleep(time.Millisecond)
		if looks == 20_000 {
			t.Fatalf("goroutines are left:\n%s", stacks())
		}
	}
}

func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}

func request(k task) Request {
	return Request{What: k, Bytes: int64(k), Cost: time.Duration(k) * time.Millisecond}
}

// ask sends one request and waits for its answer.
func ask(ctx context.Context, q *Queue[task, int], k task) error {
	t, err := q.Admit(ctx, request(k))
	if err != nil {
		return err
	}
	defer t.Close()
	square, err := t.Answer(k)
	if err == nil && square != int(k*k) {
		err = fmt.Errorf("%v: %d", k, square)
	}
	return err
}

// crowd sends requests in goroutines, each after the previous one waits.
type crowd struct {
	sync.WaitGroup
	t *testing.T
	q *Queue[task, int]
}

func (c *crowd) ask(k task, patience time.Duration, check func(error)) {
	t, err := c.q.Admit(c.t.Context(), request(k))
	require.NoError(c.t, err)
	c.q.mu.Lock()
	t.deadline = time.Now().Add(patience)
	t.due = t.deadline
	t.lane.remove(t)
	t.lane.insert(t)
	c.q.mu.Unlock()
	c.Go(func() {
		defer t.Close()
		_, err := t.Answer(k)
		check(err)
	})
	settle(c.t, func() bool { c.q.mu.Lock(); defer c.q.mu.Unlock(); return t.ready })
}

func (c *crowd) answered(err error) {
	if err != nil {
		c.t.Error(err)
	}
}

// Each lane computes one call at a time, by deadline. A short request is answered during a long
// one.
func TestOrder(t *testing.T) {
	g := newGate(1)
	c := crowd{t: t, q: start(t, g, roomy)}
	c.ask(1000, time.Minute, c.answered)
	require.Equal(t, []task{1000}, <-g.entered)
	c.ask(1, time.Minute, c.answered)
	require.Equal(t, []task{1}, <-g.entered)
	for i, patience := range []int{40, 30, 50} {
		c.ask(task(10+i), time.Duration(patience)*time.Second, c.answered)
		c.ask(task(2+i), time.Duration(patience)*time.Second, c.answered)
	}
	require.Empty(t, g.entered)
	close(g.open)
	c.Wait()
	var short, long []task
	for len(g.entered) > 0 {
		if k := (<-g.entered)[0]; k < 10 {
			short = append(short, k)
		} else {
			long = append(long, k)
		}
	}
	require.Equal(t, []task{3, 2, 4}, short)
	require.Equal(t, []task{11, 10, 12}, long)
}

func TestRequestsShareACall(t *testing.T) {
	g := newGate(3)
	c := crowd{t: t, q: start(t, g, roomy)}
	c.ask(1, time.Minute, c.answered)
	<-g.entered
	for _, k := range []task{5, 4, 5, 5, 5} {
		c.ask(k, 30*time.Second, c.answered)
	}
	c.ask(3, 31*time.Second, c.answered)
	close(g.open)
	c.Wait()
	for _, want := range [][]task{{5, 5, 5}, {4}, {5}, {3}} {
		require.Equal(t, want, <-g.entered)
	}
	require.Empty(t, g.entered)
}

// A request joins no call that would then end after the deadline of an earlier request: of the
// call's first, of one that joined, of one that waits.
func TestSharedCallsAreInTime(t *testing.T) {
	now := time.Now()
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		deadlines, costs []int
		want             int // requests in the call
		reserve          int
	}{
		{[]int{50, 90, 90}, []int{20, 20, 20}, 2, 0},
		{[]int{39, 90, 90}, []int{20, 20, 20}, 1, 0},
		{[]int{60, 90, 90}, []int{20, 20, 20}, 3, 0},
		{[]int{90, 90, 90}, []int{40, 40, 10}, 3, 0},
		{[]int{90, 90, 90}, []int{40, 40, 11}, 2, 0},
		{[]int{90, -65, 90}, []int{20, 40, 20}, 1, 0}, // the second does not join, and would be late
		{[]int{90, -80, 90}, []int{20, 40, 20}, 2, 0},
		{[]int{60, 90, 90}, []int{20, 20, 20}, 2, 5},    // the first would lose its reserve
		{[]int{60, 190, 190}, []int{20, 20, 20}, 3, 45}, // it has lost the reserve before
	} {
		l := newLane[task, int](&sync.Mutex{})
		for i, ms := range c.deadlines {
			job := task(1)
			if ms < 0 {
				ms, job = -ms, 2
			}
			x := &Ticket[task, int]{cost: time.Duration(c.costs[i]) * time.Millisecond, deadline: at(ms), due: at(ms - c.reserve), ready: true, job: job}
			l.waiting = append(l.waiting, x)
		}
		batch := l.take(now, func(call []task, next task) bool { return next == call[0] })
		require.Len(t, batch, c.want, "%v", c)
	}
}

// A request that does not fit or would be late is rejected at once, by predictions.
func TestRefusals(t *testing.T) {
	g := newGate(8)
	limits := roomy
	limits.Requests, limits.Bytes = 3, 500e3
	q := start(t, g, limits)
	refused := func(seconds int, patience time.Duration, want error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.ErrorIs(t, ask(ctx, q, task(1000*seconds)), want)
	}
	refused(300, 200*time.Second, ErrLate)
	refused(1, 0, ErrMissed)

	c := crowd{t: t, q: q}
	c.ask(100e3, time.Hour, c.answered)
	<-g.entered
	refused(100, 150*time.Second, ErrLate) // behind the running one
	c.ask(290e3, 430*time.Second, c.answered)
	refused(150, time.Hour, ErrBusy)      // of bytes
	refused(60, 400*time.Second, ErrLate) // would be in time, but make another request late
	c.ask(30e3, 400*time.Second, c.answered)
	refused(1, time.Hour, ErrBusy) // of requests
	close(g.open)
	c.Wait()
}

// A reserved request counts before its cost is known, and is decided on afterwards.
func TestReserve(t *testing.T) {
	g := newGate(8)
	limits := roomy
	limits.Requests, limits.Bytes = 2, 1000
	q := start(t, g, limits)
	reserve := func(bytes int64, patience time.Duration) (*Ticket[task, int], error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		return q.Reserve(ctx, bytes)
	}
	_, err := reserve(1001, time.Hour)
	require.ErrorIs(t, err, ErrBusy)
	a, err := reserve(900, time.Hour)
	require.NoError(t, err)
	require.Equal(t, State{Admitted: 1, Bytes: 900}, q.State())
	_, err = reserve(101, time.Hour)
	require.ErrorIs(t, err, ErrBusy)
	b, err := reserve(100, 10*time.Second)
	require.NoError(t, err)
	_, err = reserve(0, time.Hour)
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorIs(t, b.Enter(Request{What: task(1), Bytes: 101}), ErrBusy)
	require.ErrorIs(t, b.Enter(Request{What: task(1), Cost: 11 * time.Second}), ErrLate)
	b.Close()
	require.NoError(t, a.Enter(Request{What: task(7), Bytes: 1000, Cost: time.Minute}))
	require.Equal(t, State{Admitted: 1, Bytes: 1000}, q.State())
	close(g.open)
	square, err := a.Answer(7)
	require.NoError(t, err)
	require.Equal(t, 49, square)
	a.Close()
	late, err := reserve(1, time.Nanosecond)
	if err == nil {
		<-late.ctx.Done()
		err = late.Enter(request(1))
		late.Close()
	}
	require.ErrorIs(t, err, ErrMissed)
}

// A request that waited too long is not computed.
func TestDeadlineInTheQueue(t *testing.T) {
	g := newGate(8)
	c := crowd{t: t, q: start(t, g, roomy)}
	c.ask(1, time.Minute, c.answered)
	<-g.entered
	c.ask(3, time.Nanosecond, func(err error) {
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
	g := newGate(8) // which never opens
	q := start(t, g, roomy)
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() { errs <- ask(ctx, q, 1) }()
		<-g.entered
		leave()
		require.ErrorIs(t, <-errs, ErrGone)
	}
}

// A failure of a call fails its requests alone.
func TestFailures(t *testing.T) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	g := newGate(8)
	close(g.open)
	q := start(t, g, roomy)
	g.then = func() error { panic("a defect") }
	for range 3 { // and the Queue goes on
		require.EqualError(t, ask(t.Context(), q, 1), "failed: a panic in task 1")
	}
	g.then = func() error { return errors.New("a kernel failed") }
	require.EqualError(t, ask(t.Context(), q, 1), "failed: a kernel failed")
	g.then = func() error { return nil }
	require.NoError(t, ask(t.Context(), q, 1))
}

func TestDrain(t *testing.T) {
	g := newGate(8)
	q := start(t, g, roomy)
	c := crowd{t: t, q: q}
	var answers atomic.Int64
	for _, k := range []task{1, 2, 3, 1000, 1001} {
		c.ask(k, time.Minute, func(err error) { c.answered(err); answers.Add(1) })
	}
	ended := make(chan error, 1)
	go func() { ended <- q.Drain(context.Background()) }()
	settle(t, func() bool { return q.State().Draining })
	require.ErrorIs(t, ask(t.Context(), q, 1), ErrClosed)
	require.Empty(t, ended)
	close(g.open)
	require.NoError(t, <-ended)
	c.Wait()
	require.EqualValues(t, 5, answers.Load())
}

// A drain past its limit stops the running calls, and returns the number of unanswered requests.
func TestDrainInHaste(t *testing.T) {
	g := newGate(8) // which never opens
	q := start(t, g, roomy)
	c := crowd{t: t, q: q}
	for _, k := range []task{1, 2, 1000} {
		c.ask(k, time.Minute, func(err error) {
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	<-g.entered
	limit, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorContains(t, q.Drain(limit), "were not answered")
	c.Wait()
}
