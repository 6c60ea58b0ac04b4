package ring

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// Local returns the ranks of a group inside this process, for tensors in its memory. Each is
// for a goroutine of its own. There are no more than 1024; an error names another number.
func Local(size int) ([]Group, error) {
	if size < 1 || size > 1024 {
		return nil, &flashkit.ProblemError{Field: "size", Value: strconv.Itoa(size), Reason: "must be from 1 to 1024 ranks"}
	}
	h := &hub{broken: make(chan struct{}), lines: make([]line, size*size), size: size}
	for i := range h.lines {
		// A rank is at most one exchange ahead of another that it sends to.
		h.lines[i] = line{make(chan *parcel, 4), make(chan []byte, 2)}
	}
	groups := make([]Group, size)
	for r := range groups {
		groups[r] = &local{hub: h, rank: r}
	}
	return groups, nil
}

// A hub is what the ranks share.
type hub struct {
	size   int
	lines  []line // [from*size+to]
	once   sync.Once
	err    error // set before broken is closed
	broken chan struct{}
}

// A line leads from one rank to another.
type line struct {
	parcels chan *parcel
	bytes   chan []byte
}

// A parcel is a message on its way. The receiver copies, out of the sender's memory; a
// sender that gives up must not return while it does.
type parcel struct {
	tensors []flashkit.Tensor
	state   atomic.Int32
	done    chan struct{}
}

// The states of a parcel.
const (
	offered int32 = iota
	taken
	withdrawn
)

// local is one rank.
type local struct {
	hub     *hub
	rank    int
	sent    []*parcel
	receive []Message
	closed  bool
}

func (l *local) Rank() int { return l.rank }
func (l *local) Size() int { return l.hub.size }

func (l *local) to(rank int) *line   { return &l.hub.lines[l.rank*l.hub.size+rank] }
func (l *local) from(rank int) *line { return &l.hub.lines[rank*l.hub.size+l.rank] }

func (l *local) Gather(ctx context.Context, mine, all []byte) error {
	if len(all) != len(mine)*l.hub.size {
		return fmt.Errorf("ring: all has %d bytes; must be %d for %d ranks", len(all), len(mine)*l.hub.size, l.hub.size)
	}
	own := append([]byte(nil), mine...)
	for r := range l.hub.size {
		if r == l.rank {
			continue
		}
		select {
		case l.to(r).bytes <- own:
		case <-ctx.Done():
			return l.gaveUp(ctx)
		case <-l.hub.broken:
			return l.hub.err
		}
	}
	for r := range l.hub.size {
		theirs := own
		if r != l.rank {
			select {
			case theirs = <-l.from(r).bytes:
			case <-ctx.Done():
				return l.gaveUp(ctx)
			case <-l.hub.broken:
				return l.hub.err
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
	l.receive = receive
	for _, m := range send {
		p := &parcel{tensors: m.Tensors, done: make(chan struct{})}
		l.sent = append(l.sent, p)
		select {
		case l.to(m.Peer).parcels <- p:
		case <-ctx.Done():
			return l.gaveUp(ctx)
		case <-l.hub.broken:
			return l.hub.err
		}
	}
	return nil
}

func (l *local) Wait(ctx context.Context) error {
	err := l.wait(ctx)
	if err != nil {
		l.Fail(err) // first, so that who finds a message withdrawn knows why
	}
	for _, p := range l.sent {
		if !p.state.CompareAndSwap(offered, withdrawn) {
			<-p.done
		}
	}
	l.sent, l.receive = l.sent[:0], nil
	return err
}

func (l *local) wait(ctx context.Context) error {
	for _, m := range l.receive {
		select {
		case p := <-l.from(m.Peer).parcels:
			if !p.state.CompareAndSwap(offered, taken) {
				<-l.hub.broken
				return l.hub.err
			}
			if err := p.take(m); err != nil {
				return err
			}
		case <-ctx.Done():
			return l.gaveUp(ctx)
		case <-l.hub.broken:
			return l.hub.err
		}
	}
	for _, p := range l.sent {
		select {
		case <-p.done:
		case <-ctx.Done():
			return l.gaveUp(ctx)
		case <-l.hub.broken:
			return l.hub.err
		}
	}
	return nil
}

// take copies what was sent.
func (p *parcel) take(m Message) error {
	defer close(p.done)
	if len(p.tensors) != len(m.Tensors) {
		return fmt.Errorf("ring: rank %d sent %d tensors, %d were expected", m.Peer, len(p.tensors), len(m.Tensors))
	}
	for i, t := range p.tensors {
		if err := copyTensor(m.Tensors[i], t); err != nil {
			return &RankError{m.Peer, err}
		}
	}
	return nil
}

var errClosed = errors.New("ring: the group is closed")

func (l *local) gaveUp(ctx context.Context) error {
	l.Fail(ctx.Err())
	return ctx.Err()
}

func (l *local) Fail(err error) {
	l.hub.once.Do(func() {
		l.hub.err = &RankError{l.rank, err}
		close(l.hub.broken)
	})
}

// Close breaks the group for ranks that still wait for this one.
func (l *local) Close() error {
	l.closed = true
	return nil
}
