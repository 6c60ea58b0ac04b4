package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/dispatch"
)

// Calls with new outputs leave the earlier outputs as they are, and compute the same bits.
func TestFresh(t *testing.T) {
	d, err := dispatch.Default(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	for _, pass := range []string{"fwd", "bwd"} {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		c, _, err := open(t.Context(), d, &request{Problem: "b2-h4-g2-n5-m7-d40-f32-causal", Pass: pass, Seed: seed, Hold: true, Limit: 60}, nil)
		require.NoError(t, err)
		before, bits := map[string][]float32{}, map[string][]float32{}
		for name, x := range c.outputs() {
			before[name] = x.Float32s()
			bits[name] = append(bits[name], x.Float32s()...)
			clear(x.Float32s())
		}
		require.NotEmpty(t, before)
		r, err := c.time(t.Context(), &request{Fresh: true})
		require.NoError(t, err)
		require.Positive(t, r.Least)
		require.LessOrEqual(t, r.Least, r.Seconds)
		for name, x := range c.outputs() {
			require.Equal(t, bits[name], x.Float32s(), name)
			require.Equal(t, make([]float32, len(bits[name])), before[name], name)
		}
	}
}
