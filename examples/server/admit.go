package main

import (
	"context"
	"fmt"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/admission"
)

// Limits are a Server's limits. All fields must be positive.
type Limits struct {
	admission.Limits       // Bytes counts tensors and kernel workspace
	Request          int64 // maximum bytes of one request
	Batch            int   // maximum number of requests that share a call
	Copied           int64 // maximum bytes of Q, K and V of a request that shares a call; a shared call copies these tensors
}

// check returns the number of bytes that a request needs, and the request's predicted time. It
// allocates nothing, because the client has sent no tensors yet and may claim any size.
func (s *Server) check(p flashkit.Problem) (bytes int64, cost time.Duration, err error) {
	if err := p.Validate(); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", admission.ErrBad, err)
	}
	known := flashkit.Problem{Batch: 1, Heads: p.Heads, KVHeads: p.KVHeads, QLen: p.QLen, KVLen: p.KVLen,
		Dim: p.Dim, VDim: p.VDim, DType: flashkit.Float32, Band: p.Band, Scale: p.Scale}
	if p != known { // the server does not support the other fields of a Problem
		return 0, 0, fmt.Errorf("%w: %s: must be plain, of batch 1 and type f32", admission.ErrBad, p)
	}
	size := tensorBytes(p)
	if size > float64(s.limits.Request) { // before Pick, so that no kernel plans a huge problem
		return 0, 0, s.tooLarge(p, size)
	}
	k, err := s.attention.Pick(p, flashkit.PassForward)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", admission.ErrBad, err)
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
	return fmt.Errorf("%w: %s takes %.3g bytes; a request may take %d", admission.ErrTooLarge, p, size, s.limits.Request)
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

// Admit decides on a request before its tensors arrive, as admission.Queue.Admit does. It also
// returns an error if the problem is invalid or too large. Admit is safe for concurrent use. The
// caller must Close the ticket.
func (s *Server) Admit(ctx context.Context, p flashkit.Problem) (*Ticket, error) {
	bytes, cost, err := s.check(p)
	if err != nil {
		return nil, err
	}
	body := int64(4 * (size(p.QShape()) + size(p.KShape()) + size(p.VShape())))
	t, err := s.Queue.Admit(ctx, admission.Request{What: p, Bytes: bytes, Body: body, Cost: cost})
	if err != nil {
		return nil, err
	}
	return &Ticket{Ticket: t, problem: p, body: body}, nil
}

func size(s [4]int) int { return s[0] * s[1] * s[2] * s[3] }
