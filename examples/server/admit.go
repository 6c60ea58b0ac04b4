package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Limits are a Server's limits. All fields must be positive.
type Limits struct {
	Connections int           // maximum open connections, including idle connections
	Requests    int           // maximum admitted requests that have not ended
	Bytes       int64         // maximum bytes of all admitted requests: tensors and kernel workspace
	Request     int64         // maximum bytes of one request
	Timeout     time.Duration // longest and default time until a request's deadline
	Short       time.Duration // requests with a longer predicted time go to the lane for long requests
	Batch       int           // maximum number of requests that share a call
	Copied      int64         // maximum bytes of Q, K and V of a request that shares a call; a shared call copies these tensors
}

// An Outcome classifies the end of a request. Every outcome but OK is an error. Every error of a
// Server wraps an Outcome.
type Outcome string

// The outcomes. Each outcome requires a different reaction of the client.
const (
	OK          Outcome = "ok"
	ErrBad      Outcome = "bad"       // the request is invalid: do not retry
	ErrTooLarge Outcome = "too_large" // the request is too large for this server: send a smaller one
	ErrBusy     Outcome = "busy"      // rejected because of load: retry later
	ErrLate     Outcome = "late"      // rejected because a deadline would probably be missed: allow more time, or use another server
	ErrMissed   Outcome = "missed"    // admitted, but missed its deadline
	ErrGone     Outcome = "gone"      // the client ended the request
	ErrClosed   Outcome = "closed"    // the server is closing: use another server
	ErrFailed   Outcome = "failed"    // a bug in the server
)

func (o Outcome) Error() string { return string(o) }

func outcome(err error) Outcome {
	o := ErrFailed
	if err == nil {
		o = OK
	}
	errors.As(err, &o)
	return o
}

// over returns the error of a request whose context has ended.
func over(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: the time is over", ErrMissed)
	}
	return ErrGone
}

// check returns the number of bytes that a request needs, and the request's predicted time. It
// allocates nothing, because the client has sent no tensors yet and may claim any size.
func (s *Server) check(p flashkit.Problem) (bytes int64, cost time.Duration, err error) {
	if err := p.Validate(); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrBad, err)
	}
	known := flashkit.Problem{Batch: 1, Heads: p.Heads, KVHeads: p.KVHeads, QLen: p.QLen, KVLen: p.KVLen,
		Dim: p.Dim, VDim: p.VDim, DType: flashkit.Float32, Band: p.Band, Scale: p.Scale}
	if p != known { // the server does not support the other fields of a Problem
		return 0, 0, fmt.Errorf("%w: %s: must be plain, of batch 1 and type f32", ErrBad, p)
	}
	size := tensorBytes(p)
	if size > float64(s.limits.Request) { // before Pick, so that no kernel plans a huge problem
		return 0, 0, s.tooLarge(p, size)
	}
	k, err := s.attention.Pick(p, flashkit.PassForward)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrBad, err)
	}
	if k.Needs != nil {
		size += k.Needs(p.Ask(k.Pass)).Host
	}
	if !(size <= float64(s.limits.Request)) {
		return 0, 0, s.tooLarge(p, size)
	}
	return int64(size), k.Cost(p.Ask(k.Pass)), nil
}

func (s *Server) tooLarge(p flashkit.Problem, size float64) error {
	return fmt.Errorf("%w: %s takes %.3g bytes; a request may take %d", ErrTooLarge, p, size, s.limits.Request)
}

// tensorBytes returns the bytes of Q, K, V and O. A dimension of 0 counts as 1, so that it does not
// hide another, huge dimension. The sum is a float64, because it may exceed an int64.
func tensorBytes(p flashkit.Problem) (sum float64) {
	for _, shape := range [...][4]int{p.QShape(), p.KShape(), p.VShape(), p.OShape()} {
		n := 4.0
		for _, d := range shape {
			n *= float64(max(d, 1))
		}
		sum += n
	}
	return sum
}

// Admit decides on a request before its tensors arrive. It returns an error at once if the problem
// is invalid or too large, or the server is full or closing. It also returns an error if this
// request would probably miss its deadline, or make another request miss its deadline. Admit is
// safe for concurrent use. The caller must Close the ticket.
func (s *Server) Admit(ctx context.Context, p flashkit.Problem) (*Ticket, error) {
	if ctx.Err() != nil {
		return nil, over(ctx)
	}
	bytes, cost, err := s.check(p)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &Ticket{server: s, lane: s.short, problem: p, bytes: bytes, cost: cost, holders: 1, answer: make(chan answer, 1)}
	t.body = int64(4 * (size(p.QShape()) + size(p.KShape()) + size(p.VShape())))
	if cost > s.limits.Short {
		t.lane = s.long
	}
	t.deadline = now.Add(s.limits.Timeout)
	if at, ok := ctx.Deadline(); ok && at.Before(t.deadline) {
		t.deadline = at
	}
	t.due = t.deadline.Add(-min(t.deadline.Sub(now)/2, time.Second))

	s.mu.Lock()
	defer s.mu.Unlock()
	t.readable = s.arrivals.expect(t.body, now)
	switch {
	case s.draining:
		return nil, ErrClosed
	case s.admitted >= s.limits.Requests:
		return nil, fmt.Errorf("%w: %d requests are in work", ErrBusy, s.admitted)
	case bytes > s.limits.Bytes-s.bytes:
		return nil, fmt.Errorf("%w: requests in work take %d bytes, this one %d, and the limit is %d", ErrBusy, s.bytes, bytes, s.limits.Bytes)
	case !t.lane.admits(t, now):
		return nil, fmt.Errorf("%w: %s is predicted to take %v, and with what waits it or another request would miss its deadline", ErrLate, p, cost)
	}
	s.admitted++
	s.bytes += bytes
	t.unread = s.arrivals.add(t.body, now)
	t.lane.insert(t)
	t.ctx, t.leave = context.WithDeadline(ctx, t.deadline)
	return t, nil
}

// scaled returns the product of t and the factor by. The result is at most a quarter of the largest
// Duration, so that sums do not overflow.
func scaled(t time.Duration, by float64) time.Duration {
	return time.Duration(min(float64(t)*by, math.MaxInt64/4))
}

func size(s [4]int) int { return s[0] * s[1] * s[2] * s[3] }
