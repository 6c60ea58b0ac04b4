package bench

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// The baseline conforms: all grid problems and traps, every dtype and layout, masks and grouped
// heads, against the oracle.
func TestNaiveConforms(t *testing.T) {
	slow.UnderRace(t)
	o := conformance.Options{Sweep: 20, Seed: 23}
	if testing.Short() {
		o = conformance.Options{Case: "b4-*"} // a part of the grid
	}
	ran := 0
	for r := range conformance.Results(t.Context(), naiveKernels(), o) {
		if r.Err != nil {
			t.Errorf("%s on %s: %v", r.Kernel, r.Case, r.Err)
		}
		ran++
	}
	require.Greater(t, ran, 50)
}

// The baseline's Needs match the matrices of flashrun memory and the allocation of a call.
func TestNaiveMemory(t *testing.T) {
	for _, name := range []string{"b2-h4-g2-n100-m300-d32-f32", "b1-h2-g1-n257-m65-d64-dv32-f32-causal", "b1-h2-g2-n200-m200-d32-bf16"} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		for _, k := range naiveKernels() {
			matrices := NewMemoryTable(p, k.Pass).full
			want, _ := new(big.Float).SetInt(matrices).Float64()
			if p.DType == flashkit.Float32 {
				require.Equal(t, want, k.Needs(p.Ask(k.Pass)).Host, k.Name)
			} else {
				require.GreaterOrEqual(t, k.Needs(p.Ask(k.Pass)).Host, 2*want, "in float32, and the copies")
			}
			call := zeroCall(p, k)
			bytes, err := allocated(func() error { return call(t.Context()) })
			require.NoError(t, err)
			require.GreaterOrEqual(t, float64(bytes), k.Needs(p.Ask(k.Pass)).Host, k.Name)
			require.Less(t, float64(bytes), 1.25*k.Needs(p.Ask(k.Pass)).Host+256<<10, k.Name)
		}
	}
}
