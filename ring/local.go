package ring

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// Local returns the ranks of a group inside this process. Tensors are on the host, and each rank is
// for one goroutine. size must be from 1 to 1024, else the error is a *flashkit.ProblemError.
func Local(size int) ([]Group, error) {
	if size < 1 || size > 1024 {
		return nil, &flashkit.ProblemError{Field: "size", Value: strconv.Itoa(size), Reason: "must be from 1 to 1024 ranks"}
	}
	return LocalOver(make([]Mover, size))
}

// A Mover moves tensors of one rank of LocalOver. None of its methods waits for the device.
type Mover interface {
	// Ready returns a Mark after the rank's enqueued work. The messages that start next wait for
	// this Mark.
	Ready() (Mark, error)

	// Move enqueues copies of another rank's tensors src to this rank's tensors dst. It returns a
	// mark at the end of the copies. The copies wait for the marks ours and theirs, which Ready
	// returned on the two ranks. Move may run concurrently with the rank's other methods, but only
	// on one goroutine at a time.
	Move(dst, src []flashkit.Tensor, ours, theirs Mark) (Mark, error)

	// Done makes the rank's later work wait for a copy that Move enqueued. received is true if this
	// rank received the copy, and false if another rank copied from this rank.
	Done(copied Mark, received bool) error
}

// A Mark is a point in a rank's enqueued work, such as an event. Only Movers interpret it.
type Mark any

// LocalOver returns the ranks of a group inside this process. For device tensors, movers[r] moves
// the tensors of rank r, and no mover may be nil. For host tensors, all movers must be nil.
func LocalOver(movers []Mover) ([]Group, error) {
	size := len(movers)
	if size < 1 || size > 1024 {
		return nil, &flashkit.ProblemError{Field: "movers", Value: strconv.Itoa(size), Reason: "must be from 1 to 1024 ranks"}
	}
	for r, m := range movers {
		if (m == nil) != (movers[0] == nil) {
			return nil, &flashkit.ProblemError{Field: "movers", Value: strconv.Itoa(r), Reason: "must be nil for all ranks or for none"}
		}
	}
	h := &hub{broken: make(chan struct{}), lines: make([]line, size*size), size: size}
	for i := range h.lines {
		// A rank is at most one exchange ahead of a receiver. This bounds the number of messages in
		// the channels.
		h.lines[i] = line{make(chan *parcel, 2*mostRounds), make(chan []byte, 2)}
	}
	groups := make([]Group, size)
	for r := range groups {
		groups[r] = &local{hub: h, rank: r, mover: movers[r]}
	}
	return groups, nil
}

// A hub is the ranks' shared state.
type hub struct {
	size   int
	lines  []line // [from*size+to]
	once   sync.Once
	err    error // set before broken is closed
	broken chan struct{}
}

type line struct {
	parcels chan *parcel
	bytes   chan []byte
}

type local struct {
	hub     *hub
	rank    int
	sent    []*parcel
	receive []Message
	closed  bool
	awaited atomic.Int32 // the rank that this rank waits for, for the error of a deadline

	mover    Mover
	ready    Mark
	copied   []Mark     // marks of received messages
	incoming chan error // result of receiving in the background
}

func (l *local) Rank() int { return l.rank }
func (l *local) Size() int { return l.hub.size }

func (l *local) to(rank int) *line   { return &l.hub.lines[l.rank*l.hub.size+rank] }
func (l *local) from(rank int) *line { return &l.hub.lines[rank*l.hub.size+l.rank] }

func (l *local) Gather(ctx context.Context, mine, all []byte) error {
	if l.closed {
		return errClosed
	}
	if len(all) != len(mine)*l.hub.size {
		return fmt.Errorf("ring: all has %d bytes; must be %d for %d ranks", len(all), len(mine)*l.hub.size, l.hub.size)
	}
	own := append([]byte(nil), mine...)
	for r := range l.hub.size {
		if r == l.rank {
			continue
		}
		l.awaited.Store(int32(r))
		select {
		case l.to(r).bytes <- own:
		case <-ctx.Done():
			return l.canceled(ctx)
		case <-l.hub.broken:
			return l.hub.err
		}
	}
	for r := range l.hub.size {
		theirs := own
		if r != l.rank {
			var err error
			l.awaited.Store(int32(r))
			if theirs, err = pollAwait(ctx, l, l.from(r).bytes); err != nil {
				return err
			}
		}
		if n := copy(all[r*len(mine):][:len(mine)], theirs); n != len(theirs) {
			return fmt.Errorf("ring: rank %d gathers %d bytes, rank %d has %d", l.rank, len(mine), r, len(theirs))
		}
	}
	return nil
}

func (l *local) Start(ctx context.Context, send, receive []Message) error {
	if l.closed {
		return errClosed
	}
	if err := l.Err(); err != nil {
		return err
	}
	l.receive = receive
	if l.mover != nil {
		var err error
		if l.ready, err = l.mover.Ready(); err != nil {
			return err
		}
	}
	l.offer(ctx, send)
	if l.mover != nil {
		l.receiveAsync(ctx)
	}
	return nil
}

func (l *local) Wait(ctx context.Context) error {
	err := l.wait(ctx)
	if err != nil {
		l.Fail(err) // first, so that a rank that finds a message withdrawn gets the cause
	}
	if l.incoming != nil { // still running, as wait ended with an error
		<-l.incoming
		l.incoming = nil
	}
	for _, p := range l.sent {
		if !p.state.CompareAndSwap(offered, withdrawn) {
			<-p.done
			err = cmp.Or(err, l.after(p.copied, false))
		}
	}
	for _, c := range l.copied {
		err = cmp.Or(err, l.after(c, true))
	}
	l.sent, l.receive, l.copied = l.sent[:0], nil, l.copied[:0]
	return err
}

// Arrived makes the rank's later work wait for the first n received messages.
func (l *local) Arrived(ctx context.Context, n int) error {
	if err := l.received(ctx); err != nil {
		return err
	}
	for _, c := range l.copied[:n] {
		if err := l.after(c, true); err != nil {
			return err
		}
	}
	return nil
}

// after makes this rank's later work wait for a copy.
func (l *local) after(copied Mark, received bool) error {
	if copied == nil {
		return nil
	}
	return l.mover.Done(copied, received)
}

func (l *local) wait(ctx context.Context) error {
	if err := l.received(ctx); err != nil {
		return err
	}
	for _, p := range l.sent {
		l.awaited.Store(int32(p.to))
		if _, err := next(ctx, l, p.done); err != nil {
			return err
		}
	}
	return nil
}

// received receives the messages, or waits until the goroutine of receiveAsync has received them.
func (l *local) received(ctx context.Context) error {
	if l.mover == nil {
		return l.receiveAll(ctx, l.receive)
	}
	if l.incoming == nil {
		return nil
	}
	if err, ok := poll(l.incoming); ok {
		l.incoming = nil
		return err
	}
	select {
	case err := <-l.incoming:
		l.incoming = nil
		return err
	case <-ctx.Done():
		return l.canceled(ctx)
	}
}

func (l *local) canceled(ctx context.Context) error {
	err := fmt.Errorf("waits for rank %d: %w", l.awaited.Load(), ctx.Err())
	l.Fail(err)
	return err
}

func (l *local) Fail(err error) {
	l.hub.once.Do(func() {
		l.hub.err = &RankError{l.rank, err}
		close(l.hub.broken)
	})
}

func (l *local) Broken() <-chan struct{} { return l.hub.broken }

func (l *local) Err() error {
	select {
	case <-l.hub.broken:
		return l.hub.err
	default:
		return nil
	}
}

// Close makes later exchanges of this rank return an error.
func (l *local) Close() error {
	l.closed = true
	return nil
}
