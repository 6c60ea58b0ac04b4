package ring

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A Group is a rank's membership in a set of ranks, and the transport between these ranks. It is
// independent of attention. Only Fail may be called concurrently with other methods.
//
// Messages between two ranks arrive in the order of sending. All methods except Close return soon
// after their context is done; the group is then broken.
type Group interface {
	// Rank returns this rank's number, from 0 to Size-1.
	Rank() int

	// Size returns the number of ranks.
	Size() int

	// Gather sends the bytes `mine` to all ranks, and fills `all` with the bytes of every rank, in
	// rank order. len(mine) is the same on every rank; len(all) is Size*len(mine).
	Gather(ctx context.Context, mine, all []byte) error

	// Start begins sending and receiving without waiting for other ranks. In number, shape and
	// type, the tensors that a rank receives must match the tensors that the other rank sends.
	// Strides may differ. Until Wait returns, the program must not change tensors of send, nor use
	// tensors of receive. Only one exchange may be under way.
	Start(ctx context.Context, send, receive []Message) error

	// Wait returns when the current exchange is done, or at once if there is none. In a broken
	// group it returns an error as soon as the transport no longer accesses the tensors.
	Wait(ctx context.Context) error

	// Fail breaks the group because of err on this rank. If the transport can notify the other
	// ranks, calls on the other ranks return an error that names this rank and err.
	Fail(err error)

	// Close leaves the group. Call it only when every rank has reached its last call on the group.
	Close() error
}

// A Breaker is a Group that announces a failure at once, even to goroutines that do not wait in one
// of its methods. The results of Local are Breakers.
type Breaker interface {
	Group

	// Broken returns a channel that is closed when the group breaks.
	Broken() <-chan struct{}

	// Err returns the reason why the group broke, or nil if the group is not broken.
	Err() error
}

// A Message holds tensors that this rank sends to rank Peer or receives from rank Peer. Messages
// with a higher Round may begin later than other messages of the exchange. Apart marks tensors with
// large heads, possibly scattered in memory: a transport may send each head separately. Both ranks
// must give a message the same Round and Apart.
type Message struct {
	Peer    int               // the other rank
	Tensors []flashkit.Tensor // tensors of this rank, to send or to receive into
	Round   int               // number from 0; messages with a higher one may begin later
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
