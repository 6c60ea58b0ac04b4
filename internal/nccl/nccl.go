// Package nccl binds the functions of libnccl.so.2 that package ring/nccl calls, at run time
// without cgo: communicators that can be aborted, and messages between two ranks. A test can
// replace the library by a stand-in in the context.
package nccl

import (
	"context"
	"errors"
	"fmt"
)

// An ID is ncclUniqueId, which the ranks of a communicator share to find each other.
type ID [128]byte

// A Comm is ncclComm_t, 0 for none.
type Comm uintptr

// Stream is cudaStream_t, the driver's CUstream.
type Stream uintptr

// An Error is a failed function of the library.
type Error struct {
	Call string // such as ncclCommInitRankConfig
	Code int    // ncclResult_t
	Text string // the library's message
}

// Error returns the call, the text and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// A Library has the functions of NCCL. Calls act on the device of the thread's current context. One
// goroutine at a time may use a Comm, except for Async and Abort.
type Library interface {
	// Name identifies the library.
	Name() string

	// Version returns ncclGetVersion's number: 23203 is 2.32.3.
	Version() int

	// UniqueID returns a new ID for all ranks of one communicator.
	UniqueID() (ID, error)

	// Init starts to create a communicator for the given number of ranks, with at most the given
	// number of channels. Two channels occupy one multiprocessor while messages move. NCCL's
	// kernels run without clusters of blocks. Until Async reports completion, only Async and Abort
	// may use the Comm. A nonzero Comm must be released even after an error.
	Init(ranks int, id ID, rank, channels int) (Comm, error)

	// Split starts to create a second communicator of c's ranks, which uses c's connections. With
	// the new communicator, Group has enqueued all messages when it returns, and creates no thread.
	// Two ranks must have exchanged messages in c before they use the new communicator. Otherwise
	// Group would wait for both ranks. The *Comm is valid once Async of c reports completion. The
	// new communicator must be released before c.
	Split(c Comm, rank, channels int) (*Comm, error)

	// Async reports whether earlier calls have completed. If an earlier call failed, Async returns
	// the error.
	Async(c Comm) (done bool, err error)

	// Group enqueues f's sends and receives as one step, in which no message waits for another
	// message. All messages are enqueued once Async reports completion.
	Group(f func() error) error

	// Send and Receive move device memory in the stream. Sends and receives between two ranks match
	// in the order of the calls.
	Send(from uintptr, bytes, to int, c Comm, s Stream) error
	Receive(to uintptr, bytes, from int, c Comm, s Stream) error

	// Finalize starts to end a communicator, and must be called on all ranks. Destroy frees the
	// communicator after Async reports completion. Abort ends and frees a communicator at once in
	// any state, even with messages under way.
	Finalize(c Comm) error
	Destroy(c Comm) error
	Abort(c Comm) error
}

// ErrMissing is wrapped by Load's error if no library can be loaded.
var ErrMissing = errors.New("no NCCL library")

type standIn struct{} // context key

// WithStandIn returns a context with which Load returns l for any name, for tests.
func WithStandIn(ctx context.Context, l Library) context.Context {
	return context.WithValue(ctx, standIn{}, l)
}

// Load loads the named library, or libnccl.so.2 from the loader's path if name is empty. The
// library is never unloaded.
func Load(ctx context.Context, name string) (Library, error) {
	if l, ok := ctx.Value(standIn{}).(Library); ok {
		return l, nil
	}
	return load(name)
}
