package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
)

// Arrived makes the rank's later work wait for the first n received messages, or for all messages
// if the transport does not distinguish them.
func (r *Rank) Arrived(ctx context.Context, n int) error {
	if g, ok := r.Group.(interface {
		Arrived(ctx context.Context, n int) error
	}); ok {
		return g.Arrived(ctx, n)
	}
	return r.Group.Wait(ctx)
}

// Rounds returns 2 if copy engines move messages, and 3 with another transport.
func (r *Rank) Rounds() int {
	if r.external {
		return 3
	}
	return 2
}

// Moves records that some messages remain under way after other messages were passed to Done.
func (r *Rank) Moves() { r.moving = true }

// Ready returns the mark that the next messages wait for. It is the end of the rank's enqueued
// work, or the begin of the call if messages may begin early.
func (r *Rank) Ready() (ring.Mark, error) {
	r.moving = true
	if r.early {
		r.early = false
		return r.begin, nil
	}
	return r.record(r.compute)
}

// Move enqueues copies of src to dst in the rank's copy stream, after both marks.
func (r *Rank) Move(dst, src []flashkit.Tensor, ours, theirs ring.Mark) (ring.Mark, error) {
	mark, err := r.Travel(func(s *cuda.Stream) error {
		for i := range dst {
			if err := s.Copy(dst[i], src[i]); err != nil {
				return err
			}
		}
		return nil
	}, ours, theirs)
	if err != nil { // after an error the other rank reuses its memory
		return nil, errors.Join(err, r.copies.Sync())
	}
	return mark, nil
}

// Travel enqueues messages in the rank's copy stream after the given marks. It returns a mark at
// the end of the messages. Each mark is a *cuda.Event.
func (r *Rank) Travel(enqueue func(*cuda.Stream) error, after ...ring.Mark) (ring.Mark, error) {
	for _, mark := range after {
		e, ok := mark.(*cuda.Event)
		if !ok {
			return nil, fmt.Errorf("peer: %T is no mark of a GPU", mark)
		}
		if err := r.copies.Wait(e); err != nil {
			return nil, err
		}
	}
	if err := enqueue(r.copies); err != nil {
		return nil, err
	}
	return r.record(r.copies)
}

// Done makes the rank's kernels wait for copies.
func (r *Rank) Done(copied ring.Mark, received bool) error {
	e, ok := copied.(*cuda.Event)
	if !ok {
		return fmt.Errorf("peer: %T is no mark of a GPU", copied)
	}
	r.since, r.moving = append(r.since, e), false
	before, err := r.record(r.compute)
	if err == nil {
		err = r.compute.Wait(e)
	}
	if err != nil {
		return err
	}
	after, err := r.record(r.compute)
	r.waits = append(r.waits, [2]*cuda.Event{before, after})
	return err
}
