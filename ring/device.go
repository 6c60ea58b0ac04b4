package ring

import (
	"context"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Device is a Group for tensors on devices, and the Runner of its Ring. The methods of a Device
// enqueue work, which runs in the order of the calls. Only Get, Put and End wait for the work.
type Device interface {
	Group
	Chooser

	// Early reports whether the first step may be enqueued before messages begin. The result is
	// false if messages need resources that the step occupies.
	Early() bool

	// Rounds returns the maximum number of rounds in which the keys of an ordered pass are sent
	// while kernels run: 2, or 3 if messages are slow.
	Rounds() int

	// Arrived makes later work wait for the first n received messages of the current exchange.
	// These messages must be in the order of their Round.
	Arrived(ctx context.Context, n int) error

	// Beside lets the next pass begin while the previous pass ends. The next pass must not depend
	// on the previous pass, nor on work enqueued since the previous pass began. The next pass may
	// depend on messages.
	Beside()

	// PartOf returns a form of the kernel k for calls with p or with parts of p. k is one of the
	// results of Kernels. Every row and key has the same bits in a call with a part as in a call
	// with all of p.
	PartOf(k flashkit.Kernel, p flashkit.Problem) flashkit.Kernel

	// Holds reports whether a tensor is on the rank's device.
	Holds(t flashkit.Tensor) bool

	// Alloc returns device memory.
	Alloc(bytes int) (Memory, error)

	// Fill sets every element of a numeric tensor to x.
	Fill(t flashkit.Tensor, x float32) error

	// Add sets dst to x + y, in float32, rounded to dst's type. If y is the zero Tensor, Add
	// converts x to dst's type. dst may alias x or y.
	Add(dst, x, y flashkit.Tensor) error

	// Merge merges part and partLSE, the result for a second set of keys, into o and lse. If part
	// is the zero Tensor, the values of these keys are taken as 0, like the value of a sink. A row
	// of o that sees no key of either set becomes 0.
	Merge(o, lse, part, partLSE flashkit.Tensor) error

	// Copy copies src to dst. Both have the same shape and the same type. Any type is permitted.
	Copy(dst, src flashkit.Tensor) error

	// Get copies a float32 row [1, 1, 1, len(dst)] to the host.
	Get(dst []float32, src flashkit.Tensor) error

	// Put copies a float32 row [1, 1, 1, len(src)] to the device.
	Put(dst flashkit.Tensor, src []float32) error

	// Begin starts a call of the Ring. At that time, every rank has ended its work of the call
	// before the previous call. The device may therefore reuse the resources of that earlier call.
	// early means that the first messages do not depend on work enqueued after Begin.
	Begin(early bool) error

	// End waits for all enqueued work. It returns the device's time since Begin, and the part of
	// this time in which the device waited for other ranks.
	End() (took, waited time.Duration, err error)
}

// A Memory is device memory.
type Memory interface {
	// Tensor returns a dense view [b, heads, rows, dim] of type t that begins at element `from`.
	Tensor(t flashkit.DType, from, b, heads, rows, dim int) flashkit.Tensor

	// Free releases the memory once it is unused.
	Free() error
}

// A slot is a growing buffer of a Ring.
type slot struct {
	bytes  int
	host   []uint64
	device Memory
}

func (s *slot) grow(d Device, bytes int) (err error) {
	if s.bytes >= bytes && (s.device != nil || s.host != nil) {
		return nil
	}
	if err := s.free(); err != nil {
		return err
	}
	if d == nil {
		s.host = make([]uint64, max(1, (bytes+7)/8))
	} else if s.device, err = d.Alloc(bytes); err != nil {
		return err
	}
	s.bytes = bytes
	return nil
}

func (s *slot) free() (err error) {
	if s.device != nil {
		err = s.device.Free()
	}
	*s = slot{}
	return err
}

// tensor returns a dense view of the slot. The view begins at element `from`, a multiple of 64.
func (s *slot) tensor(t flashkit.DType, from int, n [4]int) flashkit.Tensor {
	if s.device != nil {
		return s.device.Tensor(t, from, n[0], n[1], n[2], n[3])
	}
	return hostTensor(s.host[from*t.Size()/8:], t, n)
}
