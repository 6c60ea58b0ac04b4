package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/nccl"
	"github.com/flashkit-go/flashkit/ring"
)

// An exchange holds messages under way. A goroutine enqueues them in the rank's copy stream, round
// by round, and waits for their end. The GPU waits for another rank until that rank's message
// arrives or the communicator is aborted.
type exchange struct {
	group    *group
	rounds   []round
	staged   int   // tensors with staging buffers
	err      error // error of a round that was not enqueued
	finished chan error
}

// A round holds the messages that NCCL moves as one group.
type round struct {
	send, receive []ring.Message
	pieces        []piece
	unstage       []stagedCopy
	enqueued      chan struct{} // closed once the round is enqueued or the exchange has failed
	mark          ring.Mark     // the round's end, nil after an error; mark and err are set before enqueued is closed
	err           error
	done          bool // awaitRound has run
}

// roundsOf groups messages by Message.Round, which must not decrease within a list.
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

// splitRound splits a list after the messages whose Round is at most n.
func splitRound(list []ring.Message, n int) (first, rest []ring.Message) {
	i := 0
	for i < len(list) && list[i].Round <= n {
		i++
	}
	return list[:i], list[i:]
}

// pieceBytes is the maximum size of a piece: 16 MiB for each of 8 channels. NCCL moves a message
// with one channel per 16 MiB, if channels are free. A larger piece would use more channels, whose
// blocks would need multiprocessors that are not free.
const pieceBytes = 8 * 16 << 20

// A piece is one NCCL message: bytes of device memory.
type piece struct {
	at    uintptr
	bytes int
	peer  int
	send  bool
}

// A stagedCopy is the copy of a received tensor from its staging buffer. The tensor is not dense,
// so NCCL cannot receive into it directly.
type stagedCopy struct{ to, from flashkit.Tensor }

// Start begins sending and receiving. It returns once the first round is enqueued on the GPU, or
// after startTimeout. A round that is enqueued when Start returns precedes later kernels. The first
// messages between two ranks wait until both ranks have called Start.
func (g *group) Start(ctx context.Context, send, receive []ring.Message) error {
	ready, err := g.rank.Ready()
	if err != nil {
		return err
	}
	return g.begin(ctx, send, receive, ready)
}

// begin does the same as Start, but the messages wait for the given marks, not for all of the
// rank's work.
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
	if g.parent != 0 { // comm is a split communicator, in which enqueuing waits for no other rank
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

// exchange sends this rank's tensor to all other ranks and receives their tensors, while the rank's
// kernels may run.
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

// startTimeout is the maximum time for which Start waits.
const startTimeout = 2 * time.Millisecond

// Wait returns when the current exchange is done. The rank's later work waits for the received
// messages.
func (g *group) Wait(ctx context.Context) error {
	return g.end(ctx, g.received)
}

// received makes the rank's later work wait for a round.
func (g *group) received(m ring.Mark) error { return g.rank.Done(m, true) }

// Arrived makes the rank's later work wait for the rounds of the first n received messages.
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

// awaitRound waits until a round is enqueued. It then calls the function `then` with the round's
// mark. If an earlier call for the round did so, awaitRound does nothing.
func (x *exchange) awaitRound(ctx context.Context, r *round, then func(ring.Mark) error) error {
	if r.done {
		return nil
	}
	select {
	case <-r.enqueued:
	case <-ctx.Done():
		x.group.Fail(x.late(ctx))
		<-r.enqueued
	}
	if r.done = true; r.mark == nil {
		return nil
	}
	return then(r.mark) // called while the GPU works, so that the GPU's clock measures the wait
}

// end does the same as Wait, but calls the function `then` with the mark of each round.
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
		g.Fail(x.late(ctx))
		return errors.Join(<-x.finished, after)
	}
}

// late returns the error of a done context. It names the ranks of the exchange's messages.
func (x *exchange) late(ctx context.Context) error {
	var ranks []int
	for i := range x.rounds { // a copy of a round would also read fields that Wait writes
		for _, m := range slices.Concat(x.rounds[i].receive, x.rounds[i].send) {
			if !slices.Contains(ranks, m.Peer) {
				ranks = append(ranks, m.Peer)
			}
		}
	}
	slices.Sort(ranks)
	text := strings.ReplaceAll(strings.Trim(fmt.Sprint(ranks), "[]"), " ", " or ")
	return fmt.Errorf("waits for rank %s: %w", text, ctx.Err())
}

// enqueueRound enqueues round i after the given marks, unless an earlier round failed.
func (x *exchange) enqueueRound(ctx context.Context, i int, after []ring.Mark) {
	r := &x.rounds[i]
	if x.err == nil {
		r.mark, x.err = x.group.rank.Travel(func(s *cuda.Stream) error { return x.enqueue(ctx, s, r) }, after...)
	}
	r.err = x.err
	close(r.enqueued)
}

// run enqueues the rounds, beginning with number from, and completes the exchange. Earlier rounds
// are enqueued already.
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
	x.finished <- errors.Join(err, g.rank.Copies().Sync()) // now no rank accesses the tensors
}

// waitGPU waits until the GPU completes the exchange. If NCCL, another rank or the context prevents
// that, waitGPU aborts the communicator.
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
			err = x.late(ctx)
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
		case <-passed: // the abort ended the messages; an error of Sync is not an error of the rank's own work
			return err
		case <-time.After(grace):
			return errors.Join(err, fmt.Errorf("ring/nccl: the GPU of rank %d does not end its messages", g.Rank()))
		}
	}
}

const (
	pollInterval = 5 * time.Millisecond // interval of asking NCCL for errors while the GPU works
	grace        = 2 * time.Second      // time for the GPU to finish after an abort
)

// enqueue enqueues a round's messages in the stream, and waits until NCCL has enqueued them.
func (x *exchange) enqueue(ctx context.Context, s *cuda.Stream, r *round) error {
	g := x.group
	if err := errors.Join(x.cut(s, r, r.send, true), x.cut(s, r, r.receive, false)); err != nil {
		return err
	}
	err := g.gpu.Within(func() error {
		return g.lib.Group(func() error { return x.postPieces(r, nccl.Stream(s.Handle())) })
	})
	if err == nil {
		if err = g.waitDone(ctx); err != nil && err == ctx.Err() {
			err = x.late(ctx)
		}
	}
	for _, c := range r.unstage {
		if err == nil {
			err = s.Copy(c.to, c.from)
		}
	}
	return err
}

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

// add appends the pieces of a tensor to a round. Both ranks must cut a tensor into the same pieces,
// although neither rank has the strides of the other rank's tensor. A tensor is one piece, because
// NCCL moves few large messages fastest. With Message.Apart each head is a piece, because
// contiguous heads need no staging buffer. The copy of large heads to that buffer is slow if few
// multiprocessors are free. Pieces larger than pieceBytes are cut further. Tensors that are not
// dense move through a staging buffer.
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

// isDense reports whether a tensor is contiguous. If heads is true, it reports whether each of the
// tensor's heads is contiguous.
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
