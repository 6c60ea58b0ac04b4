package ring

import (
	"context"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Device is a Group whose ranks have their tensors on devices, and what computes there: it
// is the Runner of its Ring too. Its methods enqueue work, in one order, and do not wait for
// it, but for Get, Put and End.
type Device interface {
	Group
	Chooser

	// Early reports whether the first step may be enqueued before the ranks have agreed and
	// messages have begun: not where messages need what that step takes.
	Early() bool

	// Rounds returns in how many rounds the keys of an ordered pass travel at most, beside kernels: 2, or 3 where
	// messages are slow.
	Rounds() int

	// Arrived lets what is enqueued from now on begin after the first n messages that the rank
	// receives of the exchange under way, whose rounds do not decrease.
	Arrived(ctx context.Context, n int) error

	// Beside says that the next pass that is enqueued depends on nothing since the pass
	// before it was enqueued, but for messages: it may begin while that one ends.
	Beside()

	// PartOf returns one of Kernels as it computes a problem and parts of it: both have the same bits.
	PartOf(k flashkit.Kernel, p flashkit.Problem) flashkit.Kernel

	// Holds reports whether a tensor lies on the rank's device.
	Holds(t flashkit.Tensor) bool

	// Alloc returns memory of the device.
	Alloc(bytes int) (Memory, error)

	// Fill sets every element of a tensor of numbers.
	Fill(t flashkit.Tensor, x float32) error

	// Add makes dst the sum of x and y, in float32, rounded to its type, or x alone if y is
	// the zero Tensor. dst may be one of them.
	Add(dst, x, y flashkit.Tensor) error

	// Merge continues O and LSE with the result of other keys, or if part is the zero
	// Tensor with keys without values. A row of no keys becomes 0.
	Merge(o, lse, part, partLSE flashkit.Tensor) error

	// Copy copies a tensor of any type to one of its shape and type.
	Copy(dst, src flashkit.Tensor) error

	// Get copies a row of float32 to the host, Put copies it back.
	Get(dst []float32, src flashkit.Tensor) error
	Put(dst flashkit.Tensor, src []float32) error

	// Begin is called when a call begins, and no other rank has work left of the last but
	// one. If it is early, the first messages do not depend on what is enqueued since. End
	// waits for all that was enqueued, and says how long the device took since
	// Begin, and how long of that it waited for other ranks.
	Begin(early bool) error
	End() (took, waited time.Duration, err error)
}

// A Memory is memory of a device. Tensor returns a dense view that begins at an element of
// it. Free waits for what uses it.
type Memory interface {
	Tensor(t flashkit.DType, from, b, heads, rows, dim int) flashkit.Tensor
	Free() error
}

// A slot is a buffer of a Ring: memory that grows.
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

// tensor returns a dense view of the slot, from an element on that is a multiple of 64.
func (s *slot) tensor(t flashkit.DType, from int, n [4]int) flashkit.Tensor {
	if s.device != nil {
		return s.device.Tensor(t, from, n[0], n[1], n[2], n[3])
	}
	return hostTensor(s.host[from*t.Size()/8:], t, n)
}
