package main

import (
	"context"
	"fmt"
	"log"
	"runtime/debug"

	"github.com/flashkit-go/flashkit"
)

// buffers hold the inputs of requests that share a call. Each lane has its own, which
// grow to Limits.Batch * Limits.Copied bytes at most.
type buffers struct{ q, k, v []float32 }

// compute runs one call. A request that is alone is computed where it lies. Those
// that share a call are copied, as a batch is one array.
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
	return o, s.forward(ctx, p, &flashkit.Forward{Q: tensor(q, p.QShape()), K: tensor(k, p.KShape()),
		V: tensor(v, p.VShape()), O: tensor(o, p.OShape())})
}

// forward makes a panic of the call an error, which costs the clients of one call
// their answer and nobody else. A panic in a goroutine that the call started, and an
// end of memory, cannot be caught: the checks before are what prevents them.
func (s *Server) forward(ctx context.Context, p flashkit.Problem, f *flashkit.Forward) (err error) {
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
	case err != nil && ctx.Err() == nil: // nobody stopped it
		log.Printf("server: %v", err)
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return err
}

func tensor(x []float32, s [4]int) flashkit.Tensor { return flashkit.F32(x, s[0], s[1], s[2], s[3]) }
