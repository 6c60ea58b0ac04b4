package ring

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A parcel is a message on its way. The receiver copies, out of the sender's memory; a
// sender that gives up must not return while it does.
type parcel struct {
	tensors []flashkit.Tensor
	state   atomic.Int32
	done    chan struct{}

	ready, copied Mark // of the Movers; copied is nil where nothing was enqueued
}

// The states of a parcel.
const (
	offered int32 = iota
	taken
	withdrawn
)

// offer sends messages. What a line has no room for goes beside the rank's other work: both ranks of a
// pair send before either receives.
func (l *local) offer(ctx context.Context, send []Message) {
	first := len(l.sent)
	for _, m := range send {
		l.sent = append(l.sent, &parcel{tensors: m.Tensors, done: make(chan struct{}), ready: l.ready})
	}
	for i, m := range send {
		select {
		case l.to(m.Peer).parcels <- l.sent[first+i]:
		default:
			go l.offerRest(ctx, slices.Clone(send[i:]), slices.Clone(l.sent[first+i:]))
			return
		}
	}
}

// offerRest sends parcels as there is room, until the group breaks or the context is done. Wait returns
// after that: it waits for each of them.
func (l *local) offerRest(ctx context.Context, send []Message, parcels []*parcel) {
	for i, m := range send {
		select {
		case l.to(m.Peer).parcels <- parcels[i]:
		case <-ctx.Done():
			return
		case <-l.hub.broken:
			return
		}
	}
}

// takeBeside receives what is there or comes soon, and the rest beside the rank's other work.
func (l *local) receiveAsync(ctx context.Context) {
	l.incoming = make(chan error, 1)
	for i := range l.receive {
		p, ok := poll(l.from(l.receive[i].Peer).parcels)
		if !ok {
			go func(got chan<- error, rest []Message) { got <- l.receiveAll(ctx, rest) }(l.incoming, l.receive[i:])
			return
		}
		if err := l.accept(p, l.receive[i]); err != nil {
			l.incoming <- err
			return
		}
	}
	l.incoming <- nil
}

// patience is how long a rank that gathers, or has a device, looks for another before it sleeps: who sleeps wakes later
// than most ranks are late.
const pollTime = 100 * time.Microsecond

// soon returns what comes over a channel within patience, if anything does.
func poll[T any](c <-chan T) (x T, ok bool) {
	for begin := time.Now(); ; runtime.Gosched() {
		select {
		case x = <-c:
			return x, true
		default:
			if time.Since(begin) > pollTime {
				return x, false
			}
		}
	}
}

// next returns what comes over a channel, or a zero value from one that was closed. A rank with a device looks for it before it sleeps.
func next[T any](ctx context.Context, l *local, c <-chan T) (T, error) {
	if l.mover != nil {
		return pollAwait(ctx, l, c)
	}
	return await(ctx, l, c)
}

// prompt is next of a rank that looks before it sleeps.
func pollAwait[T any](ctx context.Context, l *local, c <-chan T) (T, error) {
	if x, ok := poll(c); ok {
		return x, nil
	}
	return await(ctx, l, c)
}

// await is next of a rank that sleeps.
func await[T any](ctx context.Context, l *local, c <-chan T) (x T, err error) {
	select {
	case x = <-c:
		return x, nil
	case <-ctx.Done():
		return x, l.canceled(ctx)
	case <-l.hub.broken:
		return x, l.hub.err
	}
}

// takeAll receives messages.
func (l *local) receiveAll(ctx context.Context, list []Message) error {
	for _, m := range list {
		p, err := await(ctx, l, l.from(m.Peer).parcels)
		if err == nil {
			err = l.accept(p, m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// accept takes a parcel, unless its sender has withdrawn it.
func (l *local) accept(p *parcel, m Message) error {
	if !p.state.CompareAndSwap(offered, taken) {
		<-l.hub.broken
		return l.hub.err
	}
	return l.take(p, m)
}

// take copies what was sent.
func (l *local) take(p *parcel, m Message) error {
	defer close(p.done)
	if len(p.tensors) != len(m.Tensors) {
		return fmt.Errorf("ring: rank %d sent %d tensors, %d were expected", m.Peer, len(p.tensors), len(m.Tensors))
	}
	if l.mover != nil {
		copied, err := l.mover.Move(m.Tensors, p.tensors, l.ready, p.ready)
		if err != nil {
			return &RankError{l.rank, err}
		}
		p.copied, l.copied = copied, append(l.copied, copied)
		return nil
	}
	for i, t := range p.tensors {
		if t.Owner() != nil || m.Tensors[i].Owner() != nil {
			return &RankError{m.Peer, errors.New("a tensor on a device, in a group for tensors in memory")}
		}
		if err := copyTensor(m.Tensors[i], t); err != nil {
			return &RankError{m.Peer, err}
		}
	}
	return nil
}

var errClosed = errors.New("ring: the group is closed")
