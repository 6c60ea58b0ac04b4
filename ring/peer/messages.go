package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
)

// Arrived lets what the rank enqueues come after the first n messages that it receives. Where the transport
// does not tell them apart, those are all.
func (r *Rank) Arrived(ctx context.Context, n int) error {
	if g, ok := r.Group.(interface {
		Arrived(ctx context.Context, n int) error
	}); ok {
		return g.Arrived(ctx, n)
	}
	return r.Group.Wait(ctx)
}

// Rounds returns 2 for copy engines, 3 for another transport.
func (r *Rank) Rounds() int {
	if r.external {
		return 3
	}
	return 2
}

// Moves says that messages are still under way after some are Done.
func (r *Rank) Moves() { r.moving = true }

// Ready marks what the rank has enqueued, as messages begin.
func (r *Rank) Ready() (ring.Mark, error) {
	r.moving = true
	if r.early {
		r.early = false
		return r.begin, nil
	}
	return r.record(r.compute)
}

// Move enqueues copies in the rank's second stream.
func (r *Rank) Move(dst, src []flashkit.Tensor, ours, theirs ring.Mark) (ring.Mark, error) {
	mark, err := r.Travel(func(s *cuda.Stream) error {
		for i := range dst {
			if err := s.Copy(dst[i], src[i]); err != nil {
				return err
			}
		}
		return nil
	}, ours, theirs)
	if err != nil { // the other rank goes on with its memory
		return nil, errors.Join(err, r.copies.Sync())
	}
	return mark, nil
}

// Travel has enqueue put messages in the rank's second stream, after what marks say, and marks
// their end. A mark is a *cuda.Event.
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

// Done lets the rank's kernels wait for copies.
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
