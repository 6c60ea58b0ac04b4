package admission

import (
	"context"
	"fmt"
	"log"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Work is the calls that a Queue runs. J is the job of a request, A the answer.
type Work[J, A any] struct {
	// Name begins the lines of the log and the names of metrics.
	Name string
	// Joins reports whether a job may share a call with earlier jobs. Each of them has joined before.
	Joins func(call []J, next J) bool
	// Worker returns a function that computes the answers of jobs that share a call. Each lane calls
	// Worker once, and the function from one goroutine. If the context ends, the function must soon
	// return an error.
	Worker func() func(context.Context, []J) ([]A, error)
}

// A Queue computes requests in two lanes, for short and for long requests. It answers every request
// that it admits.
type Queue[J, A any] struct {
	work   Work[J, A]
	limits Limits
	base   context.Context // parent of all calls' contexts
	stop   context.CancelFunc
	lanes  sync.WaitGroup
	calls  Histogram

	mu          sync.Mutex // guards the fields below, and the fields of lanes and tickets
	short, long *lane[J, A]
	admitted    int
	bytes       int64 // bytes of admitted requests
	arrivals    arrivals
	draining    bool       // no request is admitted any more
	ended       bool       // no request is left; the lanes end
	left        *sync.Cond // signaled when a request has ended
}

// New starts a Queue. Drain ends it.
func New[J, A any](w Work[J, A], l Limits) *Queue[J, A] {
	q := &Queue[J, A]{work: w, limits: l}
	q.base, q.stop = context.WithCancel(context.Background())
	q.left = sync.NewCond(&q.mu)
	q.arrivals.slowness.most = 100 // in ns per byte; bounded, so that one slow client does not block admission
	q.short, q.long = newLane[J, A](&q.mu), newLane[J, A](&q.mu)
	q.lanes.Go(func() { q.run(q.short) })
	q.lanes.Go(func() { q.run(q.long) })
	return q
}

// Limits returns the Queue's limits.
func (q *Queue[J, A]) Limits() Limits { return q.limits }

// A State is a Queue's state at one time.
type State struct {
	Admitted int   // requests that have not ended
	Bytes    int64 // bytes of these requests
	Unread   int64 // bytes of their bodies that have not arrived; small bodies do not count
	Ready    int   // waiting requests whose body has arrived
	Draining bool
}

// State returns the Queue's present state.
func (q *Queue[J, A]) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := State{Admitted: q.admitted, Bytes: q.bytes, Unread: q.arrivals.unread, Draining: q.draining}
	for _, l := range [...]*lane[J, A]{q.short, q.long} {
		for _, t := range l.waiting {
			if t.ready {
				s.Ready++
			}
		}
	}
	return s
}

// Drain stops admission, answers the admitted requests and ends the Queue. If ctx ends first, Drain
// stops the calls, answers the remaining requests with ErrClosed, and returns an error.
func (q *Queue[J, A]) Drain(ctx context.Context) error {
	unanswered := 0
	defer context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		unanswered = q.admitted
		q.stop()
		q.left.Broadcast()
	})()
	q.mu.Lock()
	q.draining = true
	for q.admitted > 0 && q.base.Err() == nil {
		q.left.Wait()
	}
	q.ended = true
	q.short.changed.Broadcast()
	q.long.changed.Broadcast()
	var err error
	if unanswered > 0 {
		err = fmt.Errorf("%d requests were not answered in time", unanswered)
	}
	q.mu.Unlock()
	q.lanes.Wait()
	q.stop()
	return err
}

// A Ticket is an admitted request.
type Ticket[J, A any] struct {
	queue    *Queue[J, A]
	lane     *lane[J, A]
	what     fmt.Stringer
	bytes    int64
	cost     time.Duration // predicted time
	deadline time.Time
	due      time.Time       // the predicted end must not be later; the time from due to deadline is a reserve
	ctx      context.Context // ends at the deadline
	leave    context.CancelFunc
	answer   chan answer[A] // buffered, so that no call waits for a client that has left

	readable time.Time // time at which its body is predicted to have arrived
	unread   int64     // bytes of the body that have not arrived yet; 0 for a small body
	ready    bool      // its body has arrived
	holders  int       // number of holders of its memory: the client, and the call in progress
	job      J
}

type answer[A any] struct {
	value A
	err   error
}

// Answer waits for the call of an admitted job and returns the answer. It returns an error when the
// context or the Queue ends. Answer may be called once. The caller must not use the job's memory any
// more, because the Queue may read it even after Answer has returned.
func (t *Ticket[J, A]) Answer(job J) (A, error) {
	q := t.queue
	q.mu.Lock()
	t.job, t.ready, t.readable = job, true, time.Now()
	q.arrivals.arrived(t.unread, t.readable)
	t.unread = 0
	t.lane.changed.Signal()
	q.mu.Unlock()
	select {
	case a := <-t.answer:
		if a.err == nil || t.ctx.Err() == nil {
			return a.value, a.err
		}
	case <-t.ctx.Done():
	case <-q.base.Done():
	}
	var none A
	if t.ctx.Err() != nil {
		return none, over(t.ctx)
	}
	return none, ErrClosed
}

// Arrived counts n bytes of the request's body. A caller that reads a body calls Arrived after each
// part, so that the Queue learns the speed. If Arrived returns an error, the request's context has
// ended and the caller must stop reading.
func (t *Ticket[J, A]) Arrived(n int) error {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	n64 := min(int64(n), t.unread)
	t.unread -= n64
	t.queue.arrivals.arrived(n64, time.Now())
	if t.ctx.Err() != nil {
		return over(t.ctx)
	}
	return nil
}

// Close ends the ticket. As soon as no call uses the memory of the request and of its answer, this
// memory no longer counts toward the limits.
func (t *Ticket[J, A]) Close() {
	t.leave()
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.lane.remove(t)
	t.queue.arrivals.unread -= t.unread
	t.queue.release(t)
}

// release ends the use of a ticket's memory by one holder: the client, or the call in progress.
// After the last holder's release, the ticket no longer counts toward the limits.
func (q *Queue[J, A]) release(t *Ticket[J, A]) {
	if t.holders--; t.holders == 0 {
		q.admitted--
		q.bytes -= t.bytes
		q.left.Broadcast()
	}
}

func (q *Queue[J, A]) run(l *lane[J, A]) {
	compute := q.work.Worker()
	for batch := q.next(l); batch != nil; batch = q.next(l) {
		q.call(l, batch, compute)
	}
}

// next waits until the lane has requests for a call, and returns them. It returns nil when the Queue
// ends.
func (q *Queue[J, A]) next(l *lane[J, A]) []*Ticket[J, A] {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.ended {
		if batch := l.take(time.Now(), q.work.Joins); batch != nil {
			for _, t := range batch {
				t.holders++
			}
			return batch
		}
		l.changed.Wait()
	}
	return nil
}

// call computes a batch of requests and answers them. It stops early if the contexts of all
// requests end.
func (q *Queue[J, A]) call(l *lane[J, A], batch []*Ticket[J, A], compute func(context.Context, []J) ([]A, error)) {
	ctx, cancel := context.WithCancel(q.base)
	defer cancel()
	var clients atomic.Int64
	clients.Store(int64(len(batch)))
	jobs := make([]J, len(batch))
	predicted := 0.0
	for i, t := range batch {
		jobs[i] = t.job
		predicted += float64(t.cost)
		defer context.AfterFunc(t.ctx, func() {
			if clients.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	start := time.Now()
	answers, err := q.compute(ctx, batch[0].what, jobs, compute)
	took := time.Since(start)
	q.calls.Add(took)

	q.mu.Lock()
	defer q.mu.Unlock()
	l.busy = false
	ratio := float64(took) / max(predicted, float64(time.Microsecond))
	if now := start.Add(took); err == nil || ratio > l.pace.at(now) { // the time of a stopped call is only a lower bound of the full time
		l.pace.learn(ratio, now)
	}
	for i, t := range batch {
		a := answer[A]{err: err}
		if err == nil {
			a.value = answers[i]
		}
		t.answer <- a
		t.job = *new(J)
		q.release(t)
	}
}

// compute runs one call. It turns a panic into an error, so that only the requests of this call
// fail. It cannot catch panics of other goroutines or a lack of memory. The checks before the call
// must prevent such failures.
func (q *Queue[J, A]) compute(ctx context.Context, what fmt.Stringer, jobs []J, compute func(context.Context, []J) ([]A, error)) (answers []A, err error) {
	defer func() {
		if r := recover(); r != nil {
			log.Printf("%s: %s: panic: %v\n%s", q.work.Name, what, r, debug.Stack())
			err = fmt.Errorf("%w: a panic in %s", ErrFailed, what)
		}
	}()
	answers, err = compute(ctx, jobs)
	switch {
	case err != nil && q.base.Err() != nil:
		return nil, ErrClosed
	case err != nil && ctx.Err() == nil: // an error other than a stopped call
		log.Printf("%s: %v", q.work.Name, err)
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return answers, err
}
