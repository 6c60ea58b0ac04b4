package main

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/admission"
)

// An attention computes forward passes and predicts their time. *dispatch.Dispatcher implements it.
type attention interface {
	Pick(flashkit.Problem, flashkit.Pass) (flashkit.Kernel, error)
	Forward(context.Context, flashkit.Problem, *flashkit.Args) error
}

// A Server admits requests for attention to its Queue, and computes them. It answers every request
// that it admits.
type Server struct {
	*admission.Queue[job, []float32]
	attention attention
	limits    Limits
}

// A job is the problem and the tensors of a request.
type job struct {
	problem flashkit.Problem
	q, k, v []float32
}

func (j *job) copied() int64 { return int64(4 * (len(j.q) + len(j.k) + len(j.v))) }

// NewServer starts a server. Drain ends it.
func NewServer(a attention, l Limits) *Server {
	s := &Server{attention: a, limits: l}
	s.Queue = admission.New(admission.Work[job, []float32]{
		Name: "attention",
		Joins: func(call []job, next job) bool {
			return next.problem == call[0].problem && next.copied() <= l.Copied && len(call) < l.Batch
		},
		Worker: func() func(context.Context, []job) ([][]float32, error) {
			var shared buffers
			return func(ctx context.Context, jobs []job) ([][]float32, error) { return s.compute(ctx, jobs, &shared) }
		},
	}, l.Limits)
	return s
}

// A Ticket is an admitted request.
type Ticket struct {
	*admission.Ticket[job, []float32]
	problem flashkit.Problem
	body    int64 // bytes of Q, K and V
}

// Attend waits for the call and returns O, [1, H, N, DV]. It returns an error when the context or
// the server ends. Attend may be called once. q, k and v are dense. The caller must not use them
// any more, because the server may read them even after Attend has returned.
func (t *Ticket) Attend(q, k, v []float32) ([]float32, error) {
	p := t.problem
	for _, x := range [...]struct {
		name       string
		have, want int
	}{{"Q", len(q), size(p.QShape())}, {"K", len(k), size(p.KShape())}, {"V", len(v), size(p.VShape())}} {
		if x.have != x.want {
			return nil, fmt.Errorf("%w: %s.len = %d: %s has %d", admission.ErrBad, x.name, x.have, p, x.want)
		}
	}
	return t.Answer(job{p, q, k, v})
}

// buffers hold copies of the inputs of requests that share a call. Each lane has its own buffers.
// The buffers of a lane take at most Limits.Batch * Limits.Copied bytes.
type buffers struct{ q, k, v []float32 }

// compute runs one call and returns O of each request. A single request is computed from its own
// tensors. The tensors of several requests are first copied into shared.
func (s *Server) compute(ctx context.Context, batch []job, shared *buffers) ([][]float32, error) {
	p := batch[0].problem
	p.Batch = len(batch)
	q, k, v := batch[0].q, batch[0].k, batch[0].v
	if len(batch) > 1 {
		shared.q, shared.k, shared.v = shared.q[:0], shared.k[:0], shared.v[:0]
		for _, j := range batch {
			shared.q, shared.k, shared.v = append(shared.q, j.q...), append(shared.k, j.k...), append(shared.v, j.v...)
		}
		q, k, v = shared.q, shared.k, shared.v
	}
	o := make([]float32, size(p.OShape()))
	err := s.attention.Forward(ctx, p, &flashkit.Args{Q: tensor(q, p.QShape()), K: tensor(k, p.KShape()),
		V: tensor(v, p.VShape()), O: tensor(o, p.OShape())})
	answers, n := make([][]float32, len(batch)), len(o)/len(batch)
	for i := range answers {
		answers[i] = o[i*n:][:n:n]
	}
	return answers, err
}

func tensor(x []float32, s [4]int) flashkit.Tensor { return flashkit.F32(x, s[0], s[1], s[2], s[3]) }
