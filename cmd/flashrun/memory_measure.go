package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
)

// tensorLimit is the most that the tensors of a measured call may take.
const tensorLimit = 4 << 30

// kernel returns what k says and what it is measured to take.
func (f *memoryFlags) kernel(ctx context.Context, p flashkit.Problem, k flashkit.Kernel) (*memoryLine, error) {
	line := &memoryLine{Name: k.Name, Kind: kindKernel}
	if line.Note = k.Fits(p); line.Note != "" {
		return line, nil
	}
	if k.HostMemory != nil {
		line.Formula = fromFloat(k.HostMemory(p))
	}
	if k.DeviceMemory != nil {
		line.Device = new(device)
		line.Device.Tensors, line.Device.Workspace = k.DeviceMemory(p)
	}
	if line.Unmeasured = f.whyNot(p, k); line.Unmeasured != "" {
		return line, nil
	}
	bytes, err := firstCall(ctx, p, k, f.limit)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		line.Unmeasured = fmt.Sprintf("it took longer than %s", f.limit)
	case err != nil:
		return nil, runError(err)
	default:
		line.Measured = fromInt(bytes)
	}
	return line, nil
}

// whyNot returns why a call of k is not measured, or "".
func (f *memoryFlags) whyNot(p flashkit.Problem, k flashkit.Kernel) string {
	cost, bytes := k.Cost(p), p.Bytes(k.Pass())
	switch {
	case f.formula:
		return "by formula only"
	case bytes > tensorLimit:
		return fmt.Sprintf("its tensors take %s; up to %s are measured", formatBytes(bytes), formatBytes(tensorLimit))
	case cost > f.limit || cost < 0: // negative: more nanoseconds than a Duration counts
		return fmt.Sprintf("it is predicted to take longer than %s", f.limit)
	}
	return ""
}
