// Package nccl is what package ring/nccl calls of libnccl.so.2, which it loads at run time without
// cgo: communicators that can be given up, and messages between two ranks. A test hands in a stand-in
// for the library with its context.
package nccl

import (
	"context"
	"errors"
	"fmt"
)

// An ID is ncclUniqueId: what the ranks of a communicator must know to find each other.
type ID [128]byte

// A Comm is ncclComm_t, 0 for none.
type Comm uintptr

// Stream is cudaStream_t, which is the driver's CUstream.
type Stream uintptr

// An Error is a function of the library that failed.
type Error struct {
	Call string // such as ncclCommInitRankConfig
	Code int    // ncclResult_t
	Text string // what the library says of it
}

// Error returns the call, the text and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// A Library is the functions of NCCL. Calls that act on a device do so on that of the thread's
// context. One goroutine at a time may use a Comm, but for Async and Abort.
type Library interface {
	// Name says which library it is.
	Name() string

	// Version returns ncclGetVersion's: 23203 is 2.32.3.
	Version() int

	// UniqueID returns a new ID, for all ranks of one communicator.
	UniqueID() (ID, error)

	// Init begins to make a communicator of so many ranks with at most so many channels, two of
	// which take a multiprocessor while messages move. Its blocks need no neighbors. It is made
	// when Async says so; until then the Comm is good for Async and Abort alone. A Comm that is
	// not 0 must be given up even after an error.
	Init(ranks int, id ID, rank, channels int) (Comm, error)

	// Split begins to make a second communicator of the ranks of c, with its connections, whose Group returns when
	// all is enqueued: it needs no thread for that. Ranks that have sent each other nothing yet would wait for each
	// other there. It is written when Async of c says that it is made. It must be given up before c is.
	Split(c Comm, rank, channels int) (*Comm, error)

	// Async reports whether the calls before are done, or the error of one.
	Async(c Comm) (done bool, err error)

	// Group enqueues what f sends and receives as one step, in which no message waits for
	// another. All of it is enqueued when Async says that it is done.
	Group(f func() error) error

	// Send and Receive move bytes of device memory, in the stream. Messages between two ranks
	// meet in their order.
	Send(from uintptr, bytes, to int, c Comm, s Stream) error
	Receive(to uintptr, bytes, from int, c Comm, s Stream) error

	// Finalize begins to end a communicator, as all ranks do; Destroy frees it when Async says
	// that this is done. Abort ends and frees it at once, in whatever state, and the messages under
	// way with it.
	Finalize(c Comm) error
	Destroy(c Comm) error
	Abort(c Comm) error
}

// ErrMissing is wrapped by Load's error where there is no such library.
var ErrMissing = errors.New("no NCCL library")

type standIn struct{} // key of a context

// WithStandIn returns a context with which Load returns l, whatever name it is given: for tests.
func WithStandIn(ctx context.Context, l Library) context.Context {
	return context.WithValue(ctx, standIn{}, l)
}

// Load loads the library of a file's name, by default libnccl.so.2 where the loader finds it. It
// remains loaded.
func Load(ctx context.Context, name string) (Library, error) {
	if l, ok := ctx.Value(standIn{}).(Library); ok {
		return l, nil
	}
	return load(name)
}
