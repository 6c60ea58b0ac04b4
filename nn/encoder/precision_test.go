package encoder

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// bf16 has 8 significant bits, int8 less in small numbers: vectors turn by about that, more with
// more rounding. In f32, also by
// name, they stay the same.
func TestPrecision(t *testing.T) {
	v, _ := readTiny(t)
	d := opened(t)
	turned := map[string]float64{}
	for name, precision := range precisions {
		s := newTester(t, loadTiny(t, "gelu", precision), d)
		for _, c := range v.Cases {
			if c.Act != "gelu" || len(c.IDs) == 0 {
				continue
			}
			out := poisoned(32)
			require.NoError(t, s.vectors(context.Background(), out, batch{ids: c.IDs, types: c.Types, starts: []int32{0, int32(len(c.IDs))}}))
			distance := 0.0
			for i, x := range out {
				distance += math.Pow(float64(x)-float64(c.Vector[i]), 2)
			}
			turned[name] = max(turned[name], math.Sqrt(distance))
		}
	}
	t.Log(turned)
	require.Less(t, turned[""], 1e-5)
	require.Equal(t, turned[""], turned["f32"])
	for _, precision := range []string{"bf16-weights", "bf16"} {
		require.Greater(t, turned[precision], 0x1p-14)
		require.Less(t, turned[precision], 0x1p-6)
	}
	require.Greater(t, turned["int8"], 0x1p-12)
	require.Less(t, turned["int8"], 0x1p-4)
}
