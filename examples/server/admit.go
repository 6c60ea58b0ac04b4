package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Limits are what a Server takes upon itself. All must be positive.
type Limits struct {
	Connections int           // open at a time, idle ones included
	Requests    int           // admitted at a time
	Bytes       int64         // that all of them take: tensors, and what their kernels need beside them
	Request     int64         // that one of them may take
	Timeout     time.Duration // the latest deadline of a request, and that of one that names none
	Short       time.Duration // predicted time up to which a request is computed beside the long ones
	Batch       int           // requests of one call
	Copied      int64         // bytes of Q, K and V up to which a request may be copied to share a call
}

// An Outcome is how a request ended. All but OK are errors, and every error of a
// Server is one of them, wrapped with what there is to say.
type Outcome string

// Each outcome has one reaction of the client.
const (
	OK          Outcome = "ok"
	ErrBad      Outcome = "bad"       // the request makes no sense: do not come back
	ErrTooLarge Outcome = "too_large" // for this server: ask for less
	ErrBusy     Outcome = "busy"      // refused, too much is in work: come back in a while
	ErrLate     Outcome = "late"      // refused, predicted to miss a deadline: have more patience, or ask another server
	ErrMissed   Outcome = "missed"    // admitted, and missed its deadline after all
	ErrGone     Outcome = "gone"      // the client left
	ErrClosed   Outcome = "closed"    // the server closes: ask another one
	ErrFailed   Outcome = "failed"    // a defect of this side
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

// over returns the error of a request whose context is done.
func over(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: the time is over", ErrMissed)
	}
	return ErrGone
}

// check says what a request would take, before anything is allocated for it. Whoever
// asks has paid for nothing yet, so its claims are held against the limits only.
func (s *Server) check(p flashkit.Problem) (bytes int64, cost time.Duration, err error) {
	if err := p.Validate(); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", ErrBad, err)
	}
	known := flashkit.Problem{Batch: 1, Heads: p.Heads, KVHeads: p.KVHeads, QLen: p.QLen, KVLen: p.KVLen,
		Dim: p.Dim, VDim: p.VDim, DType: flashkit.Float32, Band: p.Band, Scale: p.Scale}
	if p != known { // whatever else a Problem may say, this server does not know it
		return 0, 0, fmt.Errorf("%w: %s: must be plain, of batch 1 and type f32", ErrBad, p)
	}
	size := tensorBytes(p)
	if size > float64(s.limits.Request) { // before Pick, so that no kernel plans for it
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

// tensorBytes returns the bytes of Q, K, V and O. A zero counts as one, so that it
// does not hide a huge dimension beside it. The sum is of floats, as it may overflow.
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

// Admit takes a request in before its tensors are there, or says at once why not: the
// problem makes no sense or is too large, the server is full or closes, or the request
// is predicted to miss its deadline or to make another one miss it. Admit may be
// called from several goroutines. The caller must Close the ticket.
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

// scaled returns a time times a factor.
func scaled(t time.Duration, by float64) time.Duration {
	return time.Duration(min(float64(t)*by, math.MaxInt64/4))
}

func size(s [4]int) int { return s[0] * s[1] * s[2] * s[3] }
