// Package admission decides which requests a server admits, and runs the calls that answer them. A
// Queue predicts from the costs of waiting requests whether one more can be answered before its
// deadline. It refuses other requests at once. The package also has the HTTP parts that servers
// with a Queue share: limits of connections, unread bodies, metrics and a graceful end.
package admission

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Limits are a Queue's limits. All fields must be positive.
type Limits struct {
	Connections int           // maximum open connections, including idle connections
	Requests    int           // maximum requests that have not ended
	Bytes       int64         // maximum bytes of all these requests
	Timeout     time.Duration // longest and default time until a request's deadline
	Short       time.Duration // requests with a longer predicted time go to the lane for long requests
}

// An Outcome classifies the end of a request. Every outcome but OK is an error. Every error of a
// Queue wraps an Outcome.
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

// Of returns the Outcome that an error wraps: OK if err is nil, ErrFailed if it wraps none.
func Of(err error) Outcome {
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

// A Request describes a request to Admit.
type Request struct {
	What  fmt.Stringer  // the request's name in errors
	Bytes int64         // memory of the request
	Body  int64         // bytes of the body that have not arrived yet; see Ticket.Arrived
	Cost  time.Duration // predicted time
}

// Admit decides on a request before its body arrives. It returns an error at once if the Queue is
// full or closing. It also returns an error if this request would probably miss its deadline, or
// make another request miss its deadline. Admit is safe for concurrent use. The caller must Close
// the ticket.
func (q *Queue[J, A]) Admit(ctx context.Context, r Request) (*Ticket[J, A], error) {
	return q.admit(ctx, r.Bytes, func(t *Ticket[J, A], now time.Time) error { return t.enter(r, 0, now) })
}

// Reserve admits a request whose cost is unknown until its body has arrived. Its memory counts from
// now on. Then Ticket.Enter must decide about its deadline. Reserve returns an error at once if the
// Queue is full or closing. Reserve is safe for concurrent use. The caller must Close the ticket.
func (q *Queue[J, A]) Reserve(ctx context.Context, bytes int64) (*Ticket[J, A], error) {
	return q.admit(ctx, bytes, func(*Ticket[J, A], time.Time) error { return nil })
}

// Enter decides on a reserved request with known costs, as Admit does. From now on r.Bytes count in
// place of the reserved bytes. Enter may be called once.
func (t *Ticket[J, A]) Enter(r Request) error {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.ctx.Err() != nil {
		return over(t.ctx)
	}
	return t.enter(r, t.bytes, time.Now())
}

func (q *Queue[J, A]) admit(ctx context.Context, bytes int64, enter func(*Ticket[J, A], time.Time) error) (*Ticket[J, A], error) {
	if ctx.Err() != nil {
		return nil, over(ctx)
	}
	now := time.Now()
	t := &Ticket[J, A]{queue: q, lane: q.short, holders: 1, answer: make(chan answer[A], 1)}
	t.deadline = now.Add(q.limits.Timeout)
	if at, ok := ctx.Deadline(); ok && at.Before(t.deadline) {
		t.deadline = at
	}
	t.due = t.deadline.Add(-min(t.deadline.Sub(now)/2, time.Second))

	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.draining:
		return nil, ErrClosed
	case q.admitted >= q.limits.Requests:
		return nil, fmt.Errorf("%w: %d requests are in work", ErrBusy, q.admitted)
	}
	if err := q.room(bytes, 0); err != nil {
		return nil, err
	}
	if err := enter(t, now); err != nil {
		return nil, err
	}
	q.admitted++
	q.bytes += bytes - t.bytes
	t.bytes = bytes
	t.ctx, t.leave = context.WithDeadline(ctx, t.deadline)
	return t, nil
}

// room returns an error if bytes more do not fit after the given number of bytes is freed.
func (q *Queue[J, A]) room(bytes, freed int64) error {
	if bytes > q.limits.Bytes-(q.bytes-freed) {
		return fmt.Errorf("%w: requests in work take %d bytes, this one %d, and the limit is %d", ErrBusy, q.bytes-freed, bytes, q.limits.Bytes)
	}
	return nil
}

// enter inserts the ticket into its lane, or returns why not. The ticket has held the given number
// of bytes so far.
func (t *Ticket[J, A]) enter(r Request, held int64, now time.Time) error {
	q := t.queue
	if err := q.room(r.Bytes, held); err != nil {
		return err
	}
	t.what, t.cost = r.What, r.Cost
	t.readable = q.arrivals.expect(r.Body, now)
	if r.Cost > q.limits.Short {
		t.lane = q.long
	}
	if !t.lane.admits(t, now) {
		return fmt.Errorf("%w: the predicted time of %s is %v: it or a waiting request would miss its deadline", ErrLate, r.What, r.Cost)
	}
	q.bytes += r.Bytes - held
	t.bytes = r.Bytes
	t.unread = q.arrivals.add(r.Body, now)
	t.lane.insert(t)
	return nil
}

// scaled returns the product of t and the factor by. The result is at most a quarter of the largest
// Duration, so that sums do not overflow.
func scaled(t time.Duration, by float64) time.Duration {
	return time.Duration(min(float64(t)*by, math.MaxInt64/4))
}
