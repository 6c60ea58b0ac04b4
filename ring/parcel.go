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

// A parcel is a message under way. The receiver copies from the sender's memory. A sender that
// gives up must not return while the copy runs.
type parcel struct {
	to      int // the receiver
	tensors []flashkit.Tensor
	state   atomic.Int32
	done    chan struct{}

	ready, copied Mark // marks of the Movers; copied is nil if nothing was enqueued
}

const (
	offered int32 = iota
	taken
	withdrawn
)

// offer sends messages without blocking, because two ranks that exchange messages both send before
// they receive. Once the channel to a rank is full, a goroutine sends the rest.
func (l *local) offer(ctx context.Context, send []Message) {
	first := len(l.sent)
	for _, m := range send {
		l.sent = append(l.sent, &parcel{to: m.Peer, tensors: m.Tensors, done: make(chan struct{}), ready: l.ready})
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

// offerRest sends parcels as the ranks' channels have room, until the group breaks or the context
// is done. Wait waits for every parcel.
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

// receiveAsync receives messages that arrive soon, and the rest in a goroutine.
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

// pollTime is the maximum time that a rank polls before it sleeps. Only ranks in Gather and ranks
// with a device poll. Most ranks are late by less time than a sleeping rank takes to wake up.
const pollTime = 100 * time.Microsecond

// poll returns the next value of a channel if it arrives within pollTime.
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

// next returns a channel's next value, or zero if the channel is closed. A rank with a device polls
// before it sleeps.
func next[T any](ctx context.Context, l *local, c <-chan T) (T, error) {
	if l.mover != nil {
		return pollAwait(ctx, l, c)
	}
	return await(ctx, l, c)
}

// pollAwait polls, then sleeps, until the next value.
func pollAwait[T any](ctx context.Context, l *local, c <-chan T) (T, error) {
	if x, ok := poll(c); ok {
		return x, nil
	}
	return await(ctx, l, c)
}

// await sleeps until the next value.
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

func (l *local) receiveAll(ctx context.Context, list []Message) error {
	for _, m := range list {
		l.awaited.Store(int32(m.Peer))
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

// accept takes a parcel, unless the sender has withdrawn the parcel.
func (l *local) accept(p *parcel, m Message) error {
	if !p.state.CompareAndSwap(offered, taken) {
		<-l.hub.broken
		return l.hub.err
	}
	return l.take(p, m)
}

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
