// Package cublas binds the functions of NVIDIA's cuBLAS that multiply float32 matrices in device
// memory, at run time without cgo.
package cublas

import (
	"errors"
	"fmt"
)

// Variable is the environment variable with the path of the library.
const Variable = "FLASHKIT_CUBLAS"

// ErrMissing is wrapped by Open's errors.
var ErrMissing = errors.New("no cuBLAS")

// An Error is a failed function of the library.
type Error struct {
	Call string // such as cublasCreate
	Code int    // cublasStatus_t
	Text string // the library's message
}

// Error returns the call, the text and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// A Library is a loaded cuBLAS.
type Library interface {
	// Name is the name by which the library was found.
	Name() string

	// NewHandle returns a handle for the device of the thread's current context. Its products run
	// in the stream, a cudaStream_t.
	NewHandle(stream uintptr) (Handle, error)
}

// A Handle multiplies in a stream. One goroutine at a time may use it. The device's context must be
// current on the calling thread.
type Handle interface {
	// Version returns the library's version: 130100 is 13.1.0.
	Version() int

	// Multiply enqueues a product.
	Multiply(p *Product) error

	// Close frees the handle. No product may be in progress.
	Close() error
}

// A Product is C = A W^T, or C += A W^T if Add is true, in float32 without TF32. A is [Rows, In], W
// is [Out, In] without gaps, and C is [Rows, Out]. All are row-major in device memory.
type Product struct {
	C, A, W          uintptr // addresses
	CStride, AStride int     // elements between the starts of rows
	Rows, In, Out    int     // each at least 1
	Add              bool
}
