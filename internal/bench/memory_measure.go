package bench

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// TensorLimit is the most that the tensors of a measured call may take.
const TensorLimit = 4 << 30

// A MemoryMeter measures what kernels allocate.
type MemoryMeter struct {
	Formula bool          // nothing is measured
	Limit   time.Duration // of a call
}

// Measure returns what k says and what it is measured to take.
func (f *MemoryMeter) Measure(ctx context.Context, p flashkit.Problem, k flashkit.Kernel) (*MemoryLine, error) {
	line := &MemoryLine{Name: k.Name, Kind: KindKernel}
	if line.Note = k.Fits(p.Ask(k.Pass)); line.Note != "" {
		return line, nil
	}
	line.Device = DeviceBytesOf(p, k)
	if k.Needs != nil && line.Device == nil {
		line.Formula = Size(k.Needs(p.Ask(k.Pass)).Host)
	}
	if line.Unmeasured = f.whyNot(p, k); line.Unmeasured != "" {
		return line, nil
	}
	bytes, err := firstCall(ctx, p, k, f.Limit)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		line.Unmeasured = fmt.Sprintf("took longer than %s", f.Limit)
	case err != nil:
		return nil, err
	default:
		line.Measured = big.NewInt(bytes)
	}
	return line, nil
}

// formulaOnly is why nothing is measured with --formula.
const formulaOnly = "by formula only"

// whyNot returns why a call of k is not measured, or "".
func (f *MemoryMeter) whyNot(p flashkit.Problem, k flashkit.Kernel) string {
	cost, bytes := k.Cost(p.Ask(k.Pass)), input.Bytes(p, k.Pass == flashkit.PassBackward)
	full := machine.Affordable("its tensors", bytes) // asked once: what is free may change
	switch {
	case f.Formula:
		return formulaOnly
	case bytes > TensorLimit:
		return fmt.Sprintf("its tensors take %s; up to %s are measured", terminal.Bytes(bytes), terminal.Bytes(TensorLimit))
	case full != nil:
		return full.Error()
	case cost > f.Limit || cost < 0: // negative: more nanoseconds than a Duration counts
		return fmt.Sprintf("predicted to take longer than %s", f.Limit)
	}
	return ""
}

// firstCall returns the bytes that a first call of k allocates in the host's
// memory on a backend that has run nothing before. Compiling the sandbox's
// module, once for all calls, is not counted.
func firstCall(ctx context.Context, p flashkit.Problem, k flashkit.Kernel, limit time.Duration) (int64, error) {
	k, done, err := unused(ctx, k)
	if err != nil {
		return 0, err
	}
	defer done()
	call := zeroCall(p, k)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return allocated(func() error { return call(ctx) })
}

// unused returns k of a new backend, and what closes that. Where opening a second
// backend is dear, as on a device, it returns k itself.
func unused(ctx context.Context, k flashkit.Kernel) (flashkit.Kernel, func() error, error) {
	var b flashkit.Backend
	switch BackendOf(k.Name) {
	case "simd":
		b = simd.New()
	case "wasm":
		w, err := wasm.New(ctx)
		if err != nil {
			return k, nil, err
		}
		if err := w.Compile(ctx); err != nil {
			w.Close()
			return k, nil, err
		}
		b = w
	default:
		return k, func() error { return nil }, nil
	}
	for _, other := range b.Kernels() {
		if other.Name == k.Name {
			k = other
		}
	}
	return k, b.Close, nil
}

// zeroCall returns a call of k on zeros: what they hold does not change what it
// takes.
func zeroCall(p flashkit.Problem, k flashkit.Kernel) func(context.Context) error {
	backward := k.Pass == flashkit.PassBackward
	args := input.Empty(p, 0, input.BHSD, backward).WithOutputs(backward)
	return func(ctx context.Context) error { return k.Compute(ctx, p, &args) }
}
