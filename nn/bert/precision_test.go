package bert

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/safetensors"
)

// bf16 has 8 significant bits: vectors turn by about that, more with more rounding. In f32, also by
// name, they stay the same.
func TestPrecision(t *testing.T) {
	v, _ := readTiny(t)
	d := opened(t)
	turned := map[string]float64{}
	for _, precision := range []string{"", "f32", "bf16-weights", "bf16"} {
		s := newStep(t, loadTinyIn(t, "gelu", precision), d)
		for _, c := range v.Cases {
			if c.Act != "gelu" || len(c.IDs) == 0 {
				continue
			}
			out := poisoned(32)
			require.NoError(t, s.Vectors(context.Background(), out, Batch{IDs: c.IDs, Types: c.Types, Starts: []int32{0, int32(len(c.IDs))}}))
			distance := 0.0
			for i, x := range out {
				distance += math.Pow(float64(x)-float64(c.Vector[i]), 2)
			}
			turned[precision] = max(turned[precision], math.Sqrt(distance))
		}
	}
	t.Log(turned)
	require.Less(t, turned[""], 1e-5)
	require.Equal(t, turned[""], turned["f32"])
	for _, precision := range []string{"bf16-weights", "bf16"} {
		require.Greater(t, turned[precision], 0x1p-14)
		require.Less(t, turned[precision], 0x1p-6)
	}
}

func TestPrecisionRefused(t *testing.T) {
	v, weights := readTiny(t)
	c, err := ParseConfig(v.Config)
	require.NoError(t, err)
	c.Precision = "int8"
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	_, err = Load(c, f)
	refused(t, err, "Config.Precision", `"int8"`)
}
