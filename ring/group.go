package ring

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A Group is a rank's membership in a set of ranks, and the transport between them. It is
// independent of attention. Only Fail may be called concurrently with other methods.
//
// Messages between two ranks arrive in the order of sending. All methods except Close return soon
// after their context is done; the group is then broken.
type Group interface {
	// Rank returns this rank's number, from 0 to Size-1.
	Rank() int

	// Size returns the number of ranks.
	Size() int

	// Gather sends mine to all ranks and fills all with every rank's bytes, in rank order.
	// len(mine) is the same on every rank; len(all) is Size*len(mine).
	Gather(ctx context.Context, mine, all []byte) error

	// Start begins sending and receiving without waiting for other ranks. Received tensors match
	// the sent ones in number, shape and type; strides may differ. Until Wait returns, sent tensors
	// must not change, nor received ones be used. Only one exchange may be under way.
	Start(ctx context.Context, send, receive []Message) error

	// Wait returns when the current exchange is done, or at once if there is none. In a broken
	// group it returns an error as soon as the tensors are no longer touched.
	Wait(ctx context.Context) error

	// Fail breaks the group because of err on this rank. If the transport can notify the other
	// ranks, their calls return an error that names this rank and err.
	Fail(err error)

	// Close leaves the group. All ranks must have reached their last call.
	Close() error
}

// A Breaker is a Group that announces a failure at once, even to goroutines that do not wait in it.
// Local's ranks are Breakers.
type Breaker interface {
	Group

	// Broken returns a channel that is closed when the group breaks.
	Broken() <-chan struct{}

	// Err returns why the group broke, nil if it has not.
	Err() error
}

// A Message is tensors to or from rank Peer. Messages of an exchange with a higher Round, from 0,
// may begin later. Apart means large heads, possibly scattered in memory: a transport may send them
// one by one. Round and Apart are equal on both ranks.
type Message struct {
	Peer    int               // the other rank
	Tensors []flashkit.Tensor // of this rank, sent or received
	Round   int               // from 0; a higher one may begin later
	Apart   bool              // the heads may be sent one by one
}

// A RankError names the rank that failed, and the cause if known.
type RankError struct {
	Rank int   // the rank that failed
	Err  error // the cause
}

// Error returns a text that names the rank and the cause.
func (e *RankError) Error() string { return fmt.Sprintf("ring: rank %d: %v", e.Rank, e.Err) }

// Unwrap returns the cause.
func (e *RankError) Unwrap() error { return e.Err }
