package ring

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A Group is a rank's membership in a number of ranks, and the transport between them. One
// goroutine at a time may use it, but for Fail, which any may call. A transport need know
// nothing of attention.
//
// Messages between two ranks arrive in the order in which they were sent. All methods but
// Close end soon after their context is done; the group is then broken.
type Group interface {
	// Rank returns the number of this rank, from 0 to Size-1.
	Rank() int

	// Size returns the number of ranks.
	Size() int

	// Gather sends mine to all ranks and fills all with what they sent, in the order of the
	// ranks. Every rank sends as many bytes; all holds Size times as many.
	Gather(ctx context.Context, mine, all []byte) error

	// Start begins to send and to receive, and does not wait for other ranks. A message
	// received has the tensors of the message sent, in number, shape and type; their
	// strides are free. The tensors sent must not change, those received not be used,
	// until Wait has returned. One exchange at a time may be under way.
	Start(ctx context.Context, send, receive []Message) error

	// Wait returns when the exchange under way is done; without one, at once. In a broken
	// group it returns an error as soon as the tensors are no longer touched.
	Wait(ctx context.Context) error

	// Fail breaks the group: this rank gives up because of err. Where the transport can
	// tell the others, their calls return an error that names this rank and err.
	Fail(err error)

	// Close leaves the group. All ranks must have come to their last call.
	Close() error
}

// A Breaker is a Group that tells at once that it is broken, to who does not wait in it either. The
// ranks of Local are.
type Breaker interface {
	Group

	// Broken returns a channel that is closed when the group is broken.
	Broken() <-chan struct{}

	// Err returns why it is broken, nil as long as it is not.
	Err() error
}

// A Message is what goes to a rank or comes from it. Those of an exchange with a higher Round, from 0 on, may begin
// later. Heads of tensors that are Apart are large, and need not lie beside each other on either rank: a transport may send
// them one by one. A message has the same Round, and is Apart or not, on both ranks.
type Message struct {
	Peer    int
	Tensors []flashkit.Tensor
	Round   int
	Apart   bool
}

// A RankError says which rank gave up, and why as far as that is known.
type RankError struct {
	Rank int
	Err  error
}

// Error returns a text that names the rank.
func (e *RankError) Error() string { return fmt.Sprintf("ring: rank %d: %v", e.Rank, e.Err) }

// Unwrap returns the reason.
func (e *RankError) Unwrap() error { return e.Err }
