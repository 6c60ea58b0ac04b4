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

// TensorLimit is the limit in bytes for the tensors of a call. A call with larger tensors is not
// measured.
const TensorLimit = 4 << 30

// A MemoryMeter measures the memory that kernels allocate.
type MemoryMeter struct {
	Formula bool          // only formulas, no measurement
	Limit   time.Duration // time limit of a call
}

// Measure returns k's workspace, by formula and as measured.
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

// formulaOnly is the value of MemoryLine.Unmeasured with --formula.
const formulaOnly = "by formula only"

// whyNot returns the reason why a call of k is not measured, or "".
func (f *MemoryMeter) whyNot(p flashkit.Problem, k flashkit.Kernel) string {
	cost, bytes := k.Cost(p.Ask(k.Pass)), input.Bytes(p, k.Pass == flashkit.PassBackward)
	full := machine.Affordable("its tensors", bytes) // called only once, because free memory may change between calls
	switch {
	case f.Formula:
		return formulaOnly
	case bytes > TensorLimit:
		return fmt.Sprintf("its tensors take %s; up to %s are measured", terminal.Bytes(bytes), terminal.Bytes(TensorLimit))
	case full != nil:
		return full.Error()
	case cost > f.Limit || cost < 0: // a negative cost has overflowed a Duration
		return fmt.Sprintf("predicted to take longer than %s", f.Limit)
	}
	return ""
}

// firstCall returns the host memory that the first call of k allocates on a new backend. It does
// not count the compiled module of the WebAssembly sandbox, which all calls share.
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

// unused returns the kernel k of a new backend, whose workspace is empty, and a function that
// closes this backend. If k runs on a device, unused returns k itself, because a second backend is
// expensive.
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

// zeroCall returns a call of k on tensors of zeros: the allocated memory does not depend on the
// tensors' values.
func zeroCall(p flashkit.Problem, k flashkit.Kernel) func(context.Context) error {
	backward := k.Pass == flashkit.PassBackward
	args := input.Empty(p, 0, input.BHSD, backward).WithOutputs(backward)
	return func(ctx context.Context) error { return k.Compute(ctx, p, &args) }
}
