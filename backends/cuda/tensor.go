package cuda

import (
	"errors"
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A Buffer is memory of the device.
type Buffer struct {
	b       *Backend
	address Pointer
	bytes   int
	foreign bool // not ours to free
	freed   atomic.Bool
}

// Alloc returns a Buffer of that many bytes, whose contents are undefined. When
// the device is full the error says so, and the device remains usable.
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

// Wrap returns a Buffer over memory of the device that the program got elsewhere,
// by cuMemAlloc or from another library, in the device's primary context. It
// remains the program's.
func (b *Backend) Wrap(address Pointer, bytes int) *Buffer {
	return &Buffer{b: b, address: address, bytes: bytes, foreign: true}
}

// Bytes returns the size.
func (m *Buffer) Bytes() int { return m.bytes }

// Address returns where the memory begins.
func (m *Buffer) Address() Pointer { return m.address }

// Free gives the memory back. It waits for the work that uses it. To use the
// buffer, or a tensor in it, afterwards is an error.
func (m *Buffer) Free() error {
	if m.freed.Swap(true) {
		return errors.New("cuda: the buffer is freed already")
	}
	if m.foreign {
		return nil
	}
	return m.b.do(func() error { return m.b.drv.MemFree(m.address) })
}

// A Tensor is a strided view of a Buffer, with the strides and the words of
// flashkit.Tensor. The zero Tensor means "not wanted" where a field allows it.
type Tensor struct {
	memory *Buffer
	view   flashkit.Tensor // of the device's addresses, which the host must not touch
}

// Tensor returns a dense view [b, heads, rows, dim], row-major, that begins at
// an element of the buffer. Nothing is checked until it is used with a Problem.
func (m *Buffer) Tensor(t flashkit.DType, from, b, heads, rows, dim int) Tensor {
	n := max(0, m.bytes/t.Size()-max(0, from))
	at := m.address + Pointer(max(0, from)*t.Size())
	switch t {
	case flashkit.Float32:
		return Tensor{m, flashkit.F32(deviceSlice[float32](at, n), b, heads, rows, dim)}
	case flashkit.Float16:
		return Tensor{m, flashkit.F16(deviceSlice[uint16](at, n), b, heads, rows, dim)}
	default:
		return Tensor{m, flashkit.BF16(deviceSlice[uint16](at, n), b, heads, rows, dim)}
	}
}

// deviceSlice describes device memory as a slice, for its address and length
// alone. Unified addressing keeps such addresses apart from all of the host's.
func deviceSlice[T float32 | uint16](at Pointer, n int) []T {
	return unsafe.Slice((*T)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), n)
}

// WithStrides returns the same view with other distances, in elements, between
// batches, heads and rows. Inputs may use 0 to repeat a dimension.
func (t Tensor) WithStrides(batch, head, row int) Tensor {
	t.view = t.view.WithStrides(batch, head, row)
	return t
}

// AsBSHD returns a view of the same shape whose memory lies as
// [batch, rows, heads, row elements].
func (t Tensor) AsBSHD() Tensor {
	t.view = t.view.AsBSHD()
	return t
}

// Shape returns [batch, heads, rows, row elements].
func (t Tensor) Shape() [4]int { return t.view.Shape() }

// Forward is the arguments of a forward pass on the device: flashkit.Args, of
// its tensors.
type Forward struct {
	Q, K, V, O Tensor
	LSE        Tensor // may be the zero Tensor

	Kernel string // such as cuda/fwd_sm80; "" for the one predicted fastest
}

// Backward is the arguments of a backward pass on the device:
// flashkit.Args, of its tensors.
type Backward struct {
	Q, K, V, O, LSE, DO Tensor
	DLSE                Tensor // may be the zero Tensor
	DQ, DK, DV          Tensor

	Kernel string // such as cuda/bwd_sm80; "" for the one predicted fastest
	Fast   bool   // sums dQ in whatever order comes: faster, but the bits differ from run to run
}

// check refuses memory that is not b's, and then what the common check refuses.
// It describes the arguments in a, which is only there to not allocate them.
func (x *Forward) check(b *Backend, p flashkit.Problem, a *arguments) error {
	if x == nil {
		return missing("Forward")
	}
	if err := b.owns(named{"Q", &x.Q}, named{"K", &x.K}, named{"V", &x.V}, named{"O", &x.O}, named{"LSE", &x.LSE}); err != nil {
		return err
	}
	a.tensors = flashkit.Args{Q: x.Q.view, K: x.K.view, V: x.V.view, O: x.O.view, LSE: x.LSE.view}
	return a.check(p, flashkit.PassForward)
}

func (x *Backward) check(b *Backend, p flashkit.Problem, a *arguments) error {
	if x == nil {
		return missing("Backward")
	}
	if err := b.owns(named{"Q", &x.Q}, named{"K", &x.K}, named{"V", &x.V}, named{"O", &x.O}, named{"LSE", &x.LSE},
		named{"DO", &x.DO}, named{"DLSE", &x.DLSE}, named{"DQ", &x.DQ}, named{"DK", &x.DK}, named{"DV", &x.DV}); err != nil {
		return err
	}
	a.tensors = flashkit.Args{
		Q: x.Q.view, K: x.K.view, V: x.V.view, O: x.O.view, LSE: x.LSE.view, DO: x.DO.view, DLSE: x.DLSE.view,
		DQ: x.DQ.view, DK: x.DK.view, DV: x.DV.view,
	}
	return a.check(p, flashkit.PassBackward)
}

// check is the common check of a's tensors, and refuses what no kernel takes.
func (a *arguments) check(p flashkit.Problem, pass flashkit.Pass) error {
	if err := a.call.Set(p, pass, &a.tensors); err != nil {
		return err
	}
	if missing := p.Features() &^ takes; missing != 0 {
		return &flashkit.UnsupportedError{Kernel: "cuda", Problem: p, Reason: "does not support " + missing.String()}
	}
	return nil
}

type named struct {
	name string
	t    *Tensor
}

func (b *Backend) owns(tensors ...named) error {
	for _, n := range tensors {
		switch m := n.t.memory; {
		case m == nil: // the common check knows whether it may be missing
		case m.b != b:
			return &flashkit.ProblemError{Field: n.name, Value: m.b.dev.String(), Reason: "the tensor is not on " + b.dev.String() + " of this backend"}
		case m.freed.Load():
			return &flashkit.ProblemError{Field: n.name, Value: "freed", Reason: "its buffer is freed"}
		}
	}
	return nil
}
