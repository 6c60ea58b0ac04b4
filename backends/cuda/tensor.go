package cuda

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// A Buffer is a block of device memory. Device tensors are views of Buffers.
type Buffer struct {
	b       *Backend
	address Pointer
	bytes   int
	foreign bool // owned by the program
	freed   atomic.Bool
}

// Alloc returns a new Buffer of the given size, with undefined contents. If the device is full it
// returns an error, and the device remains usable. Free frees the Buffer.
func (b *Backend) Alloc(bytes int) (*Buffer, error) {
	if bytes < 0 {
		return nil, &flashkit.ProblemError{Field: "bytes", Value: strconv.Itoa(bytes), Reason: "must not be negative"}
	}
	m := &Buffer{b: b, bytes: bytes}
	err := b.do(func() (err error) {
		m.address, err = b.drv.MemAlloc(max(bytes, 1))
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Wrap returns a Buffer for device memory of the program, from cuMemAlloc or another library, in
// the device's primary context. The program remains the memory's owner: Free leaves the memory
// allocated.
func (b *Backend) Wrap(address Pointer, bytes int) *Buffer {
	return &Buffer{b: b, address: address, bytes: bytes, foreign: true}
}

// Backend returns the backend of the memory's device.
func (m *Buffer) Backend() *Backend { return m.b }

// Bytes returns the size in bytes.
func (m *Buffer) Bytes() int { return m.bytes }

// Address returns the memory's address on the device, for other libraries.
func (m *Buffer) Address() Pointer { return m.address }

// Free waits for the work that uses the memory, and frees it. Later use of the buffer, or of a
// tensor in it, is an error.
func (m *Buffer) Free() error {
	if m.freed.Swap(true) {
		return errors.New("cuda: the buffer is freed already")
	}
	if m.foreign {
		return nil
	}
	return m.b.do(func() error { return m.b.drv.MemFree(m.address) })
}

// Device returns the number and name of the memory's device, for errors.
func (m *Buffer) Device() string { return m.b.dev.String() }

// Tensor returns a dense row-major view [b, heads, rows, dim] that begins at element `from` of the
// buffer. Tensor itself checks nothing: a call that uses the view returns an error if the view
// exceeds the buffer.
func (m *Buffer) Tensor(t flashkit.DType, from, b, heads, rows, dim int) flashkit.Tensor {
	n := m.bytes / max(1, t.Size())
	if from < 0 || from > n {
		from = n
	}
	at := m.address + Pointer(from*t.Size())
	return flashkit.OnDevice(m, t, uintptr(at), n-from, b, heads, rows, dim)
}

// allArguments are all tensors of the calls that kernels support, in the order of params.views and
// then of the function view, which finds them by their index.
var allArguments = func() []flashkit.Argument {
	with := func(p flashkit.Problem) func(a flashkit.Argument) bool {
		return func(a flashkit.Argument) bool {
			return a.Role(&p, flashkit.PassForward)|a.Role(&p, flashkit.PassBackward) != 0
		}
	}
	scored := with(flashkit.Problem{Score: flashkit.Score{ALiBi: true, Bias: true, Mask: true, Sink: true}}) // the features with tensors
	list := slices.DeleteFunc(flashkit.Arguments(), func(a flashkit.Argument) bool { return !scored(a) })
	for _, more := range []func(a flashkit.Argument) bool{with(flashkit.Problem{Int8Group: 1}), with(flashkit.Problem{RowMax: true, Score: flashkit.Score{Ranges: 1}})} {
		list = append(list, slices.DeleteFunc(flashkit.Arguments(), func(a flashkit.Argument) bool { return scored(a) || !more(a) })...)
	}
	return list
}()

// owns returns an error if a tensor is not in memory of b.
func (b *Backend) owns(args *flashkit.Args, pass flashkit.Pass, p *flashkit.Problem) error {
	for i := range allArguments {
		a := &allArguments[i]
		t := a.Of(args)
		if t.IsZero() || a.Role(p, pass) == 0 {
			continue // flashkit's check decides whether the tensor may be missing
		}
		switch m, ok := t.Owner().(*Buffer); {
		case !ok:
			return &flashkit.ProblemError{Field: a.Name, Value: "elsewhere", Reason: "must be a tensor on " + b.dev.String()}
		case m.b != b:
			return &flashkit.ProblemError{Field: a.Name, Value: m.Device(), Reason: "the tensor is not on " + b.dev.String() + " of this backend"}
		case m.freed.Load():
			return &flashkit.ProblemError{Field: a.Name, Value: "freed", Reason: "its buffer is freed"}
		}
	}
	return nil
}

// looseRows reports whether the size of a row of dense Q, K or V is not a multiple of 16 bytes.
func looseRows(p flashkit.Problem) bool {
	unit := rowAlignment / p.DType.Size()
	return p.Dim%unit != 0 || p.VDim%unit != 0
}
