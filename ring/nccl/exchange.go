package nccl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/nccl"
	"github.com/flashkit-go/flashkit/ring"
)

// An exchange is messages under way. A goroutine enqueues them in the rank's stream of copies and
// sees to their end: what the GPU waits for of another rank ends only with that, or by an abort.
type exchange struct {
	group    *group
	pieces   []piece
	staged   int // tensors that have memory of their own
	unstage  []copied
	placed   chan struct{} // closed when all is enqueued, or an error ended it
	mark     ring.Mark     // set before placed is closed; nil after an error
	finished chan error
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
type copied struct{ to, from flashkit.Tensor }

// Start begins to send and to receive. It returns when all is enqueued on the GPU, so that the kernels
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
	if g.now != nil {
		return errors.New("ring/nccl: an exchange is under way")
	}
	x := &exchange{group: g, placed: make(chan struct{}), finished: make(chan error, 1)}
	g.now = x
	go x.run(ctx, after, send, receive)
	select {
	case <-x.placed:
	case <-time.After(moment):
	}
	return ctx.Err()
}

// moment is how long Start waits.
const moment = 2 * time.Millisecond

// Wait returns when the exchange under way is done. What the rank enqueues from then on comes after
// it.
func (g *group) Wait(ctx context.Context) error {
	return g.end(ctx, func(m ring.Mark) error { return g.rank.Done(m, true) })
}

// end is Wait that has then tell the rank of the end of what is enqueued.
func (g *group) end(ctx context.Context, then func(ring.Mark) error) error {
	x := g.now
	if g.now = nil; x == nil {
		return nil
	}
	select {
	case <-x.placed:
	case <-ctx.Done():
		g.Fail(ctx.Err())
		<-x.placed
	}
	var after error
	if x.mark != nil { // while the GPU is still at work, so that its clock tells what it waited
		after = then(x.mark)
	}
	select {
	case err := <-x.finished:
		return errors.Join(err, after)
	case <-ctx.Done():
		g.Fail(ctx.Err())
		return errors.Join(<-x.finished, after)
	}
}

// run sees to the exchange.
func (x *exchange) run(ctx context.Context, after []ring.Mark, send, receive []ring.Message) {
	g := x.group
	mark, err := g.rank.Travel(func(s *cuda.Stream) error { return x.enqueue(ctx, s, send, receive) }, after...)
	if err == nil {
		x.mark = mark
	}
	close(x.placed)
	if err == nil {
		x.finished <- x.see(ctx, mark)
		return
	}
	err = g.give(err)
	x.finished <- errors.Join(err, g.rank.Copies().Sync()) // nobody touches the tensors any more
}

// see waits for the GPU's end of the exchange. It aborts the communicator if that cannot come.
func (x *exchange) see(ctx context.Context, mark ring.Mark) error {
	g := x.group
	passed := make(chan error, 1)
	go func() { passed <- mark.(*cuda.Event).Sync() }()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		var err error
		select {
		case err := <-passed:
			if err != nil {
				err = g.give(err)
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
		err = g.give(err)
		select {
		case <-passed: // by the abort, which is no error of the rank's own work
			return err
		case <-time.After(grace):
			return errors.Join(err, fmt.Errorf("ring/nccl: the GPU of rank %d does not end its messages", g.Rank()))
		}
	}
}

const (
	look  = 5 * time.Millisecond // how often NCCL is asked for errors while the GPU works
	grace = 2 * time.Second      // how long the GPU may take to end after an abort
)

// enqueue puts the messages in the stream, and waits until NCCL has done so.
func (x *exchange) enqueue(ctx context.Context, s *cuda.Stream, send, receive []ring.Message) error {
	g := x.group
	if err := errors.Join(x.cut(s, send, true), x.cut(s, receive, false)); err != nil {
		return err
	}
	err := g.gpu.Within(func() error {
		return g.lib.Group(func() error { return x.message(nccl.Stream(s.Handle())) })
	})
	if err == nil {
		err = g.settled(ctx)
	}
	for _, c := range x.unstage {
		if err == nil {
			err = s.Copy(c.to, c.from)
		}
	}
	return err
}

// message asks NCCL for every piece.
func (x *exchange) message(s nccl.Stream) error {
	g := x.group
	for _, p := range x.pieces {
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
func (x *exchange) cut(s *cuda.Stream, list []ring.Message, send bool) error {
	g := x.group
	for _, m := range list {
		if m.Peer < 0 || m.Peer >= g.Size() {
			return fmt.Errorf("ring/nccl: rank %d: must be from 0 to %d", m.Peer, g.Size()-1)
		}
		for _, t := range m.Tensors {
			if !g.rank.Holds(t) {
				return errors.New("ring/nccl: a tensor elsewhere: must lie on the rank's GPU")
			}
			if err := x.add(s, t, m.Peer, send); err != nil {
				return err
			}
		}
	}
	return nil
}

// add makes a piece of a tensor: all of it at once, as NCCL moves a few large messages faster than many
// small ones, and as both ranks must agree and know only the shape of each other's tensor. Of more than
// pieceBytes it makes several. One whose elements do not follow each
// other is copied.
func (x *exchange) add(s *cuda.Stream, t flashkit.Tensor, peer int, send bool) error {
	n, size := t.Shape(), t.DType().Size()
	bytes := n[0] * n[1] * n[2] * n[3] * size
	if bytes == 0 {
		return nil
	}
	if !isDense(&t) {
		m, err := x.group.stage(x.staged, bytes)
		if err != nil {
			return err
		}
		x.staged++
		dense := m.Tensor(t.DType(), 0, n[0], n[1], n[2], n[3])
		if !send {
			x.unstage = append(x.unstage, copied{t, dense})
		} else if err := s.Copy(dense, t); err != nil {
			return err
		}
		t = dense
	}
	for at := 0; at < bytes; at += pieceBytes {
		x.pieces = append(x.pieces, piece{t.Address() + uintptr(at), min(pieceBytes, bytes-at), peer, send})
	}
	return nil
}

// isDense reports whether the elements of a tensor follow each other.
func isDense(t *flashkit.Tensor) bool {
	n, strides, next := t.Shape(), t.Strides(), 1
	for d := 3; d >= 0; d-- {
		if n[d] != 1 && strides[d] != next {
			return false
		}
		next *= n[d]
	}
	return true
}
