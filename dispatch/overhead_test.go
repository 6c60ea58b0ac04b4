package dispatch_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/allocs"
)

// small is the smallest problem, which shows the overhead of dispatch best.
var small = flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 2, QLen: 1, KVLen: 2, Dim: 8, VDim: 8}

func smallForward() *flashkit.Args {
	x := func(rows int) flashkit.Tensor { return flashkit.F32(make([]float32, 2*rows*8), 1, 2, rows, 8) }
	return &flashkit.Args{Q: x(1), K: x(2), V: x(2), O: x(1)}
}

// Dispatch does not allocate with real kernels either.
func TestNoAllocationBesidesRealKernels(t *testing.T) {
	d := dispatch.New(simd.New())
	defer d.Close()
	f, ctx := smallForward(), t.Context()
	require.NoError(t, d.Forward(ctx, small, f))
	require.Zero(t, allocs.PerRun(100, func() {
		if err := d.Forward(ctx, small, f); err != nil {
			t.Error(err)
		}
	}))
}

// hollow has the CPU's kernels without their computation: a call is the check and dispatch.
type hollow struct{ *simd.Backend }

func (h hollow) Kernels() []flashkit.Kernel {
	list := h.Backend.Kernels()
	for i := range list {
		if list[i].Pass == flashkit.PassForward {
			list[i].Run = func(context.Context, *flashkit.Call) error { return nil }
		}
	}
	return list
}

// The difference from a direct call is the overhead of dispatch.
func BenchmarkCall(b *testing.B) {
	all := dispatch.New(hollow{simd.New()})
	defer all.Close()
	k, err := all.Pick(small, flashkit.PassForward)
	require.NoError(b, err)
	frozen, f, ctx := all.Frozen(), smallForward(), b.Context()
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"direct", func() error { return k.Compute(ctx, small, f) }},
		{"dispatch", func() error { return all.Forward(ctx, small, f) }},
		{"frozen", func() error { return frozen.Forward(ctx, small, f) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A text generator has one more key at each call.
func BenchmarkNewProblem(b *testing.B) {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 1, Dim: 64, VDim: 64}
	b.ReportAllocs()
	for b.Loop() {
		p.KVLen = p.KVLen%4096 + 1
		if _, err := d.Pick(p, flashkit.PassForward); err != nil {
			b.Fatal(err)
		}
	}
}
