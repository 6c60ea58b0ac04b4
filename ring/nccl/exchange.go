package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/nccl"
	"github.com/flashkit-go/flashkit/ring"
)

// An exchange is messages under way. A goroutine enqueues them in the rank's stream of copies, round by round, and
// sees to their end: what the GPU waits for of another rank ends only with that, or by an abort.
type exchange struct {
	group    *group
	rounds   []round
	staged   int   // tensors that have memory of their own
	err      error // of a round that was not enqueued
	finished chan error
}

// A round is messages that NCCL moves together.
type round struct {
	send, receive []ring.Message
	pieces        []piece
	unstage       []stagedCopy
	enqueued      chan struct{} // closed when all is enqueued, or an error ended the exchange
	mark          ring.Mark     // set before placed is closed, as is err; nil after an error
	err           error
	done          bool // told the rank
}

// roundsOf cuts messages, whose rounds do not decrease.
func roundsOf(send, receive []ring.Message) (list []round) {
	for len(send)+len(receive) > 0 {
		n := math.MaxInt
		for _, m := range [...][]ring.Message{send, receive} {
			if len(m) > 0 {
				n = min(n, m[0].Round)
			}
		}
		x := round{enqueued: make(chan struct{})}
		x.send, send = splitRound(send, n)
		x.receive, receive = splitRound(receive, n)
		list = append(list, x)
	}
	return list
}

// until cuts off the first messages, up to those of a round.
func splitRound(list []ring.Message, n int) (first, rest []ring.Message) {
	i := 0
	for i < len(list) && list[i].Round <= n {
		i++
	}
	return list[:i], list[i:]
}

// pieceBytes is the most that NCCL moves with half of its channels, 8 of the usual 16: of more it gives each no
// more than 16 MiB while others are left, and its kernel has blocks that find no multiprocessor.
const pieceBytes = 8 * 16 << 20

// A piece is one message of NCCL's: bytes of device memory.
type piece struct {
	at    uintptr
	bytes int
	peer  int
	send  bool
}

// A copied is a tensor that is received in other memory, as its rows do not lie close.
type stagedCopy struct{ to, from flashkit.Tensor }

// Start begins to send and to receive. It returns when the first round is enqueued on the GPU, so that the kernels
// that follow do not come before, or after a moment: the first messages between two ranks wait until both have begun.
func (g *group) Start(ctx context.Context, send, receive []ring.Message) error {
	ready, err := g.rank.Ready()
	if err != nil {
		return err
	}
	return g.begin(ctx, send, receive, ready)
}

// begin is Start after what the marks say.
func (g *group) begin(ctx context.Context, send, receive []ring.Message, after ...ring.Mark) error {
	if err := g.usable(); err != nil {
		return err
	}
	if g.current != nil {
		return errors.New("ring/nccl: an exchange is under way")
	}
	x := &exchange{group: g, rounds: roundsOf(send, receive), finished: make(chan error, 1)}
	if len(x.rounds) == 0 {
		return ctx.Err()
	}
	g.current = x
	from := 0
	if g.parent != 0 { // so that to enqueue waits for nobody
		x.enqueueRound(ctx, 0, after)
		from, after = 1, nil
	}
	go x.run(ctx, from, after)
	select {
	case <-x.rounds[0].enqueued:
	case <-time.After(startTimeout):
	}
	return ctx.Err()
}

// exchange sends the tensor of this rank to all others and receives theirs, beside what the rank computes.
func (g *group) exchange(ctx context.Context, of func(rank int) flashkit.Tensor) error {
	var send, receive []ring.Message
	rank, size := g.Rank(), g.Size()
	for i := 1; i < size; i++ {
		to, from := (rank+i)%size, (rank-i+size)%size
		send = append(send, ring.Message{Peer: to, Tensors: []flashkit.Tensor{of(rank)}})
		receive = append(receive, ring.Message{Peer: from, Tensors: []flashkit.Tensor{of(from)}})
	}
	return cmp.Or(g.begin(ctx, send, receive), g.end(ctx, func(ring.Mark) error { return nil }))
}

// moment is how long Start waits.
const startTimeout = 2 * time.Millisecond

// Wait returns when the exchange under way is done. What the rank enqueues from then on comes after
// it.
func (g *group) Wait(ctx context.Context) error {
	return g.end(ctx, g.received)
}

// received lets what the rank enqueues come after a round.
func (g *group) received(m ring.Mark) error { return g.rank.Done(m, true) }

// Arrived lets what the rank enqueues come after the rounds of the first n messages that it receives.
func (g *group) Arrived(ctx context.Context, n int) error {
	x := g.current
	if x == nil {
		return g.usable()
	}
	for i := 0; i < len(x.rounds) && n > 0; i++ {
		r := &x.rounds[i]
		n -= len(r.receive)
		if err := x.awaitRound(ctx, r, g.received); err != nil {
			return err
		}
		if r.err != nil {
			return r.err
		}
		if i+1 < len(x.rounds) {
			g.rank.Moves()
		}
	}
	return nil
}

// tell waits until a round is enqueued, and has then tell the rank of its end, once.
func (x *exchange) awaitRound(ctx context.Context, r *round, then func(ring.Mark) error) error {
	if r.done {
		return nil
	}
	select {
	case <-r.enqueued:
	case <-ctx.Done():
		x.group.Fail(ctx.Err())
		<-r.enqueued
	}
	if r.done = true; r.mark == nil {
		return nil
	}
	return then(r.mark) // while the GPU is still at work, so that its clock tells what it waited
}

// end is Wait that has then tell the rank of the end of what is enqueued.
func (g *group) end(ctx context.Context, then func(ring.Mark) error) error {
	x := g.current
	if g.current = nil; x == nil {
		return nil
	}
	var after error
	for i := range x.rounds {
		after = errors.Join(after, x.awaitRound(ctx, &x.rounds[i], then))
	}
	select {
	case err := <-x.finished:
		return errors.Join(err, after)
	case <-ctx.Done():
		g.Fail(ctx.Err())
		return errors.Join(<-x.finished, after)
	}
}

// place enqueues a round, unless one before was not.
func (x *exchange) enqueueRound(ctx context.Context, i int, after []ring.Mark) {
	r := &x.rounds[i]
	if x.err == nil {
		r.mark, x.err = x.group.rank.Travel(func(s *cuda.Stream) error { return x.enqueue(ctx, s, r) }, after...)
	}
	r.err = x.err
	close(r.enqueued)
}

// run sees to the exchange, of which the rounds before from are enqueued.
func (x *exchange) run(ctx context.Context, from int, after []ring.Mark) {
	g := x.group
	for i := from; i < len(x.rounds); i++ {
		x.enqueueRound(ctx, i, after)
		after = nil
	}
	if x.err == nil {
		x.finished <- x.waitGPU(ctx, x.rounds[len(x.rounds)-1].mark)
		return
	}
	err := g.failAbort(x.err)
	x.finished <- errors.Join(err, g.rank.Copies().Sync()) // nobody touches the tensors any more
}

// see waits for the GPU's end of the exchange. It aborts the communicator if that cannot come.
func (x *exchange) waitGPU(ctx context.Context, mark ring.Mark) error {
	g := x.group
	passed := make(chan error, 1)
	go func() { passed <- mark.(*cuda.Event).Sync() }()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		var err error
		select {
		case err := <-passed:
			if err != nil {
				err = g.failAbort(err)
			}
			return err
		case <-ctx.Done():
			err = ctx.Err()
		case <-g.broken:
			err = g.reason()
		case <-tick.C:
			_, err = g.lib.Async(g.comm)
		}
		if err == nil {
			continue
		}
		err = g.failAbort(err)
		select {
		case <-passed: // by the abort, which is no error of the rank's own work
			return err
		case <-time.After(grace):
			return errors.Join(err, fmt.Errorf("ring/nccl: the GPU of rank %d does not end its messages", g.Rank()))
		}
	}
}

const (
	pollInterval = 5 * time.Millisecond // how often NCCL is asked for errors while the GPU works
	grace        = 2 * time.Second      // how long the GPU may take to end after an abort
)

// enqueue puts the messages of a round in the stream, and waits until NCCL has done so.
func (x *exchange) enqueue(ctx context.Context, s *cuda.Stream, r *round) error {
	g := x.group
	if err := errors.Join(x.cut(s, r, r.send, true), x.cut(s, r, r.receive, false)); err != nil {
		return err
	}
	err := g.gpu.Within(func() error {
		return g.lib.Group(func() error { return x.postPieces(r, nccl.Stream(s.Handle())) })
	})
	if err == nil {
		err = g.waitDone(ctx)
	}
	for _, c := range r.unstage {
		if err == nil {
			err = s.Copy(c.to, c.from)
		}
	}
	return err
}

// message asks NCCL for every piece.
func (x *exchange) postPieces(r *round, s nccl.Stream) error {
	g := x.group
	for _, p := range r.pieces {
		f := g.lib.Receive
		if p.send {
			f = g.lib.Send
		}
		if err := f(p.at, p.bytes, p.peer, g.comm, s); err != nil {
			return err
		}
	}
	return nil
}

// cut makes pieces of messages.
func (x *exchange) cut(s *cuda.Stream, r *round, list []ring.Message, send bool) error {
	g := x.group
	for _, m := range list {
		if m.Peer < 0 || m.Peer >= g.Size() {
			return fmt.Errorf("ring/nccl: rank %d: must be from 0 to %d", m.Peer, g.Size()-1)
		}
		for _, t := range m.Tensors {
			if !g.rank.Holds(t) {
				return errors.New("ring/nccl: a tensor elsewhere: must lie on the rank's GPU")
			}
			if err := x.add(s, r, t, &m, send); err != nil {
				return err
			}
		}
	}
	return nil
}

// add makes pieces of a tensor. Both ranks must agree and know only the shape of each other's tensor. All of it is one, as
// NCCL moves few large messages faster than many small ones, but where large heads lie apart: to copy them together beside
// a kernel, on the multiprocessors that it leaves, takes longer. A piece of more than pieceBytes is several. What
// does not lie close is copied.
func (x *exchange) add(s *cuda.Stream, r *round, t flashkit.Tensor, m *ring.Message, send bool) error {
	n, size := t.Shape(), t.DType().Size()
	runs, bytes := 1, n[0]*n[1]*n[2]*n[3]*size
	if bytes == 0 {
		return nil
	}
	if m.Apart {
		runs, bytes = n[0]*n[1], n[2]*n[3]*size
	}
	if !isDense(&t, m.Apart) {
		b, err := x.group.stage(x.staged, runs*bytes)
		if err != nil {
			return err
		}
		x.staged++
		dense := b.Tensor(t.DType(), 0, n[0], n[1], n[2], n[3])
		if !send {
			r.unstage = append(r.unstage, stagedCopy{t, dense})
		} else if err := s.Copy(dense, t); err != nil {
			return err
		}
		t = dense
	}
	for i := range runs {
		begin := t.Address()
		if m.Apart {
			begin += uintptr(t.Offset(i/n[1], i%n[1], 0) * size)
		}
		for at := 0; at < bytes; at += pieceBytes {
			r.pieces = append(r.pieces, piece{begin + uintptr(at), min(pieceBytes, bytes-at), m.Peer, send})
		}
	}
	return nil
}

// isDense reports whether the elements of a tensor, or those of each head, follow each other.
func isDense(t *flashkit.Tensor, heads bool) bool {
	n, strides, next := t.Shape(), t.Strides(), 1
	if heads {
		n[0], n[1] = 1, 1
	}
	for d := 3; d >= 0; d-- {
		if n[d] != 1 && strides[d] != next {
			return false
		}
		next *= n[d]
	}
	return true
}
