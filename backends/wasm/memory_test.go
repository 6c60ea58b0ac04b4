package wasm

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// The formula approximates the allocations of a first call on a compiled module: the runtime grows
// memory by more than the request, and an instance also has memory outside the module's.
func TestHostMemory(t *testing.T) {
	slow.UnderRace(t)
	for _, name := range []string{"b1-h1-g1-n1-m1-d8-f32", "b1-h4-g2-n300-m1500-d64-f32", "b1-h4-g2-n300-m1500-d64-f32-causal"} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		for i := range variants {
			b, err := New(t.Context())
			require.NoError(t, err)
			require.NoError(t, b.Compile(t.Context()))
			k := b.Kernels()[i]
			p := within(&k, p)
			got, want := allocated(t, k, p), k.Needs(p.Ask(k.Pass)).Host
			require.GreaterOrEqual(t, got, want/2, "%s %s", k.Name, p)
			require.LessOrEqual(t, got, 2*want+1<<20, "%s %s", k.Name, p)
			t.Logf("%s %s: %.0f allocated, %.0f by formula", k.Name, p, got, want)
			require.NoError(t, b.Close())
		}
	}
}

func allocated(t *testing.T, k flashkit.Kernel, p flashkit.Problem) float64 {
	zeros := func(s [4]int) flashkit.Tensor {
		return flashkit.F32(make([]float32, s[0]*s[1]*s[2]*s[3]), s[0], s[1], s[2], s[3])
	}
	q, key, v := zeros(p.QShape()), zeros(p.KShape()), zeros(p.VShape())
	o, lse := zeros(p.OShape()), zeros(p.LSEShape())
	fwd := &flashkit.Args{Q: q, K: key, V: v, O: o, LSE: lse}
	bwd := &flashkit.Args{Q: q, K: key, V: v, O: o, LSE: lse, DO: zeros(p.OShape()), DQ: zeros(p.QShape()), DK: zeros(p.KShape()), DV: zeros(p.VShape())}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := error(nil)
	if k.Pass == flashkit.PassForward {
		err = k.Compute(t.Context(), p, fwd)
	} else {
		err = k.Compute(t.Context(), p, bwd)
	}
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	return float64(after.TotalAlloc - before.TotalAlloc)
}
