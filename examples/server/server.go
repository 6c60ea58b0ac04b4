package main

import (
	"context"
	"fmt"
	"log"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// An attention computes forward passes and predicts their time. *dispatch.Dispatcher implements it.
type attention interface {
	Pick(flashkit.Problem, flashkit.Pass) (flashkit.Kernel, error)
	Forward(context.Context, flashkit.Problem, *flashkit.Args) error
}

// A Server computes requests in two lanes, for short and for long requests. It answers every
// request that it admits.
type Server struct {
	attention attention
	limits    Limits
	base      context.Context // parent of all calls' contexts
	stop      context.CancelFunc
	lanes     sync.WaitGroup
	calls     histogram

	mu          sync.Mutex // guards the fields below, and the fields of lanes and tickets
	short, long *lane
	admitted    int
	bytes       int64 // bytes of admitted requests
	arrivals    arrivals
	draining    bool       // no request is admitted any more
	ended       bool       // no request is left; the lanes end
	left        *sync.Cond // signaled when a request has ended
}

// NewServer starts a server. Drain ends it.
func NewServer(a attention, l Limits) *Server {
	s := &Server{attention: a, limits: l}
	s.base, s.stop = context.WithCancel(context.Background())
	s.left = sync.NewCond(&s.mu)
	s.arrivals.slowness.most = 100 // in ns per byte; bounded, so that one slow client does not block admission
	s.short = newLane(&s.mu)
	s.long = newLane(&s.mu)
	s.lanes.Go(func() { s.work(s.short) })
	s.lanes.Go(func() { s.work(s.long) })
	return s
}

// Drain stops admission, answers the admitted requests and ends the server. If ctx ends first,
// Drain stops the calls, answers the remaining requests with ErrClosed, and returns an error.
func (s *Server) Drain(ctx context.Context) error {
	unanswered := 0
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		unanswered = s.admitted
		s.stop()
		s.left.Broadcast()
	})()
	s.mu.Lock()
	s.draining = true
	for s.admitted > 0 && s.base.Err() == nil {
		s.left.Wait()
	}
	s.ended = true
	s.short.changed.Broadcast()
	s.long.changed.Broadcast()
	var err error
	if unanswered > 0 {
		err = fmt.Errorf("%d requests were not answered in time", unanswered)
	}
	s.mu.Unlock()
	s.lanes.Wait()
	s.stop()
	return err
}

// A Ticket is an admitted request.
type Ticket struct {
	server   *Server
	lane     *lane
	problem  flashkit.Problem
	bytes    int64
	cost     time.Duration // predicted time
	deadline time.Time
	due      time.Time       // the predicted end must not be later; the time from due to deadline is a reserve
	ctx      context.Context // ends at the deadline
	leave    context.CancelFunc
	answer   chan answer // buffered, so that no call waits for a client that has left

	readable time.Time // time at which its tensors are predicted to have arrived
	body     int64     // bytes of Q, K and V
	unread   int64     // bytes that have not arrived yet; 0 for a small body
	ready    bool      // its tensors have arrived
	holders  int       // number of holders of its memory: the client, and the call in progress
	q, k, v  []float32
}

type answer struct {
	o   []float32
	err error
}

// Attend waits for the call and returns O, [1, H, N, DV]. It returns an error when the context or
// the server ends. Attend may be called once. q, k and v are dense. The caller must not use them
// any more, because the server may read them even after Attend has returned.
func (t *Ticket) Attend(q, k, v []float32) ([]float32, error) {
	s, p := t.server, t.problem
	for _, x := range [...]struct {
		name       string
		have, want int
	}{{"Q", len(q), size(p.QShape())}, {"K", len(k), size(p.KShape())}, {"V", len(v), size(p.VShape())}} {
		if x.have != x.want {
			return nil, fmt.Errorf("%w: %s.len = %d: %s has %d", ErrBad, x.name, x.have, p, x.want)
		}
	}
	s.mu.Lock()
	t.q, t.k, t.v, t.ready, t.readable = q, k, v, true, time.Now()
	s.arrivals.arrived(t.unread, t.readable)
	t.unread = 0
	t.lane.changed.Signal()
	s.mu.Unlock()
	select {
	case a := <-t.answer:
		if a.err == nil || t.ctx.Err() == nil {
			return a.o, a.err
		}
	case <-t.ctx.Done():
	case <-s.base.Done():
	}
	if t.ctx.Err() != nil {
		return nil, over(t.ctx)
	}
	return nil, ErrClosed
}

func (t *Ticket) copied() int64 { return int64(4 * (len(t.q) + len(t.k) + len(t.v))) }

// arrived counts n bytes of the request's body. A caller that reads a body calls arrived after each
// part, so that the server learns the speed. If arrived returns an error, the request's context has
// ended and the caller must stop reading.
func (t *Ticket) arrived(n int) error {
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	n64 := min(int64(n), t.unread)
	t.unread -= n64
	t.server.arrivals.arrived(n64, time.Now())
	if t.ctx.Err() != nil {
		return over(t.ctx)
	}
	return nil
}

// Close ends the ticket. As soon as no call uses the memory of the request and of its result, this
// memory no longer counts toward the limits.
func (t *Ticket) Close() {
	t.leave()
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	t.lane.remove(t)
	t.server.arrivals.unread -= t.unread
	t.server.release(t)
}

// release ends the use of a ticket's memory by one holder: the client, or the call in progress.
// After the last holder's release, the ticket no longer counts toward the limits.
func (s *Server) release(t *Ticket) {
	if t.holders--; t.holders == 0 {
		s.admitted--
		s.bytes -= t.bytes
		s.left.Broadcast()
	}
}

func (s *Server) work(l *lane) {
	var shared buffers
	for batch := s.next(l); batch != nil; batch = s.next(l) {
		s.call(l, batch, &shared)
	}
}

// next waits until the lane has requests for a call, and returns them. It returns nil when the
// server ends.
func (s *Server) next(l *lane) []*Ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended {
		if batch := l.take(time.Now(), &s.limits); batch != nil {
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
func (s *Server) call(l *lane, batch []*Ticket, shared *buffers) {
	ctx, cancel := context.WithCancel(s.base)
	defer cancel()
	var clients atomic.Int64
	clients.Store(int64(len(batch)))
	for _, t := range batch {
		defer context.AfterFunc(t.ctx, func() {
			if clients.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	predicted := scaled(batch[0].cost, float64(len(batch)))
	start := time.Now()
	o, err := s.compute(ctx, batch, shared)
	took := time.Since(start)
	s.calls.add(took)

	s.mu.Lock()
	defer s.mu.Unlock()
	l.busy = false
	ratio := float64(took) / float64(max(predicted, time.Microsecond))
	if now := start.Add(took); err == nil || ratio > l.pace.at(now) { // the time of a stopped call is only a lower bound of the full time
		l.pace.learn(ratio, now)
	}
	for i, t := range batch {
		a := answer{err: err}
		if err == nil {
			n := len(o) / len(batch)
			a.o = o[i*n:][:n:n]
		}
		t.answer <- a
		t.q, t.k, t.v = nil, nil, nil
		s.release(t)
	}
}

// buffers hold copies of the inputs of requests that share a call. Each lane has its own buffers.
// The buffers of a lane take at most Limits.Batch * Limits.Copied bytes.
type buffers struct{ q, k, v []float32 }

// compute runs one call and returns O of the whole batch. A single request is computed from its own
// tensors. The tensors of several requests are first copied into shared.
func (s *Server) compute(ctx context.Context, batch []*Ticket, shared *buffers) ([]float32, error) {
	p := batch[0].problem
	p.Batch = len(batch)
	q, k, v := batch[0].q, batch[0].k, batch[0].v
	if len(batch) > 1 {
		shared.q, shared.k, shared.v = shared.q[:0], shared.k[:0], shared.v[:0]
		for _, t := range batch {
			shared.q, shared.k, shared.v = append(shared.q, t.q...), append(shared.k, t.k...), append(shared.v, t.v...)
		}
		q, k, v = shared.q, shared.k, shared.v
	}
	o := make([]float32, size(p.OShape()))
	return o, s.forward(ctx, p, &flashkit.Args{Q: tensor(q, p.QShape()), K: tensor(k, p.KShape()),
		V: tensor(v, p.VShape()), O: tensor(o, p.OShape())})
}

// forward runs Forward. It turns a panic into an error, so that only the requests of this call
// fail. It cannot catch panics of other goroutines or a lack of memory. The checks before the call
// must prevent such failures.
func (s *Server) forward(ctx context.Context, p flashkit.Problem, f *flashkit.Args) (err error) {
	defer func() {
		if r := recover(); r != nil {
			log.Printf("server: %s: panic: %v\n%s", p, r, debug.Stack())
			err = fmt.Errorf("%w: a panic in %s", ErrFailed, p)
		}
	}()
	err = s.attention.Forward(ctx, p, f)
	switch {
	case err != nil && s.base.Err() != nil:
		return ErrClosed
	case err != nil && ctx.Err() == nil: // an error other than a stopped call
		log.Printf("server: %v", err)
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return err
}

func tensor(x []float32, s [4]int) flashkit.Tensor { return flashkit.F32(x, s[0], s[1], s[2], s[3]) }
