package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// canceledInside checks that a forward pass stops soon after its context ends. The call has a few
// rows of one head, which no kernel splits among workers. An output that differs from the finished
// call's output shows that the call stopped. The check doubles the number of keys until all tries
// with this number stop, so the outcome does not depend on the kernel's speed.
func canceledInside(ctx context.Context, k flashkit.Kernel) error {
	const least, most, tries = 1 << 14, 1 << 23, 4 // least and most are numbers of keys
	if k.Device {
		return notHeld("what has begun on a device goes on to its end")
	}
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 8, KVLen: least, Dim: 1, VDim: 1}
	var reason string
	for _, p.DType = range dtypes {
		if reason = k.Fits(p.Ask(k.Pass)); reason == "" {
			break
		}
	}
	if reason != "" {
		return &flashkit.UnsupportedError{Kernel: k.Name, Problem: p, Reason: reason}
	}
	late := 0
	for ; p.KVLen <= most && k.Fits(p.Ask(k.Pass)) == ""; p.KVLen *= 2 {
		args := flashkit.NewArgs(p, k.Pass)
		for _, t := range [...]*flashkit.Tensor{&args.Q, &args.K, &args.V} {
			for i, x := range noise("inside", t.Len()) {
				put(t, i, bitsIn(t.DType(), x))
			}
		}
		if err := k.Compute(ctx, p, args); err != nil { // the first call may prepare the kernel
			return err
		}
		start := time.Now()
		if err := k.Compute(ctx, p, args); err != nil {
			return err
		}
		took, whole, stopped := time.Since(start), elementsOf(&args.O), 0
		for range tries {
			for i := range args.O.Len() {
				put(&args.O, i, 0)
			}
			switch err := computeFor(ctx, took/4, k, p, args); {
			case err == nil: // the call finished before the cancellation
			case !errors.Is(err, context.Canceled):
				return err
			case slices.Equal(whole, elementsOf(&args.O)):
				late++
			default:
				stopped++
			}
		}
		if stopped == tries {
			return nil
		}
	}
	if late > 0 {
		return fmt.Errorf("%d times a call of %d rows went on to its end after its context was canceled, with up to %d keys", late, p.QLen, p.KVLen/2)
	}
	return notHeld(fmt.Sprintf("a call of %d rows and %d keys is over before it can be canceled", p.QLen, p.KVLen/2))
}

// computeFor calls the kernel with a context that is canceled after a time d. The time begins when
// the kernel first checks the context.
func computeFor(ctx context.Context, d time.Duration, k flashkit.Kernel, p flashkit.Problem, args *flashkit.Args) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return k.Compute(&ending{Context: ctx, begin: sync.OnceFunc(func() { time.AfterFunc(d, cancel) })}, p, args)
}

// An ending is a context that calls begin when the kernel first calls Done or Err. Compute itself
// calls Err once before the kernel runs, and this call does not count.
type ending struct {
	context.Context
	begin func()
	looks atomic.Int32
}

func (e *ending) Done() <-chan struct{} {
	e.begin()
	return e.Context.Done()
}

func (e *ending) Err() error {
	if e.looks.Add(1) > 1 {
		e.begin()
	}
	return e.Context.Err()
}

// bitsIn returns the bits of x converted to type t.
func bitsIn(t flashkit.DType, x float32) uint32 {
	switch t {
	case flashkit.Float16:
		return uint32(half.ToF16(x))
	case flashkit.BFloat16:
		return uint32(half.ToBF16(x))
	}
	return math.Float32bits(x)
}
