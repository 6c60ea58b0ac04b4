package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Request is one sequence's attention: a problem with Batch 1, in float32, and
// its tensors, dense. The slices belong to the server from Attend on, which may
// read them even after the client has gone.
type Request struct {
	Problem flashkit.Problem
	Q, K, V []float32
}

// An attention computes forward passes: a dispatcher does.
type attention interface {
	Forward(context.Context, flashkit.Problem, *flashkit.Forward) error
}

// Limits are what a Server takes upon itself.
type Limits struct {
	Calls   int           // at the same time. A call of the CPU backend uses every core, so 1 or 2 are plenty
	Queue   int           // requests that wait; one more is told ErrBusy
	Batch   int           // requests of one call
	Wait    time.Duration // for others to share a call with
	Timeout time.Duration // of a call
}

// ErrBusy says that the queue is full; ErrClosed that the server has ended.
var (
	ErrBusy   = errors.New("the server is busy")
	ErrClosed = errors.New("the server is closed")
)

// A Server gathers requests for the same problem into batches and runs these.
type Server struct {
	attention attention
	limits    Limits
	queue     chan *waiting
	calls     chan struct{} // one token for each call in progress
	ended     chan struct{}
}

// waiting is a request in the queue.
type waiting struct {
	Request
	ctx    context.Context
	answer chan answer // with room for one, so that nobody waits for a client that has gone
}

type answer struct {
	o   []float32
	err error
}

// NewServer returns a server; Run makes it work.
func NewServer(a attention, l Limits) *Server {
	return &Server{attention: a, limits: l, queue: make(chan *waiting, max(1, l.Queue)),
		calls: make(chan struct{}, max(1, l.Calls)), ended: make(chan struct{})}
}

// Attend returns O, [1, H, N, DV], as soon as it is computed, or the context's
// error as soon as that is done. It may be called from several goroutines.
func (s *Server) Attend(ctx context.Context, r Request) ([]float32, error) {
	if err := r.check(); err != nil {
		return nil, err // before the queue: a bad request must not spoil the batch of others
	}
	w := &waiting{r, ctx, make(chan answer, 1)}
	select {
	case <-s.ended:
		return nil, ErrClosed
	case s.queue <- w:
	default:
		return nil, ErrBusy
	}
	select {
	case a := <-w.answer:
		return a.o, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ended:
		select {
		case a := <-w.answer: // of the last batch
			return a.o, a.err
		default:
			return nil, ErrClosed
		}
	}
}

func (r *Request) check() error {
	p := r.Problem
	if p.Batch != 1 || p.DType != flashkit.Float32 {
		return fmt.Errorf("%s: must have batch 1 and type f32", p)
	}
	if err := p.Validate(); err != nil {
		return err
	}
	f := &flashkit.Forward{Q: tensor(r.Q, p.QShape()), K: tensor(r.K, p.KShape()), V: tensor(r.V, p.VShape()),
		O: tensor(make([]float32, size(p.OShape())), p.OShape())}
	return p.CheckForward(f)
}

// Run serves until the context is done. Batches that are then in progress are
// computed, and requests that still wait are told ErrClosed.
func (s *Server) Run(ctx context.Context) {
	var inProgress sync.WaitGroup
	defer close(s.ended)
	defer inProgress.Wait()
	for {
		groups := s.gather(ctx)
		if groups == nil {
			return
		}
		for p, group := range groups {
			select {
			case s.calls <- struct{}{}: // the limit: while all calls are taken, the queue fills
			case <-ctx.Done():
				return
			}
			inProgress.Go(func() {
				defer func() { <-s.calls }()
				s.call(p, group)
			})
		}
	}
}

// gather waits for a request, and a little for others, and sorts them by their
// problem. It returns nil when the context is done.
func (s *Server) gather(ctx context.Context) map[flashkit.Problem][]*waiting {
	groups := map[flashkit.Problem][]*waiting{} // a problem can key a map
	var enough <-chan time.Time
	for range max(1, s.limits.Batch) {
		select {
		case w := <-s.queue:
			groups[w.Problem] = append(groups[w.Problem], w)
			if enough == nil {
				enough = time.After(s.limits.Wait)
			}
		case <-enough:
			return groups
		case <-ctx.Done():
			return nil
		}
	}
	return groups
}

// call runs the requests of a problem as one batch and answers them. Those whose
// clients have gone are left out, and once all of them have gone, it stops.
func (s *Server) call(p flashkit.Problem, group []*waiting) {
	ctx, cancel := context.WithTimeout(context.Background(), s.limits.Timeout)
	defer cancel()
	batch := slices.DeleteFunc(group, func(w *waiting) bool { return w.ctx.Err() != nil })
	if len(batch) == 0 {
		return
	}
	var clients atomic.Int64
	clients.Store(int64(len(batch)))
	for _, w := range batch {
		defer context.AfterFunc(w.ctx, func() {
			if clients.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	o, err := s.compute(ctx, p, batch)
	for i, w := range batch {
		if err != nil {
			w.answer <- answer{err: err}
		} else {
			n := len(o) / len(batch)
			w.answer <- answer{o: o[i*n:][:n:n]}
		}
	}
}

// compute runs one batch. Tensors of a batch are one array each.
func (s *Server) compute(ctx context.Context, p flashkit.Problem, batch []*waiting) ([]float32, error) {
	p.Batch = len(batch)
	var q, k, v []float32
	for _, w := range batch {
		q, k, v = append(q, w.Q...), append(k, w.K...), append(v, w.V...)
	}
	o := make([]float32, size(p.OShape()))
	return o, s.attention.Forward(ctx, p, &flashkit.Forward{Q: tensor(q, p.QShape()), K: tensor(k, p.KShape()),
		V: tensor(v, p.VShape()), O: tensor(o, p.OShape())})
}

func size(s [4]int) int { return s[0] * s[1] * s[2] * s[3] }

func tensor(x []float32, s [4]int) flashkit.Tensor { return flashkit.F32(x, s[0], s[1], s[2], s[3]) }
