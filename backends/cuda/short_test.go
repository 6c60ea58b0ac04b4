package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Short sequences have a block per 128 rows; long ones and features use another kernel.
func TestShortLaunches(t *testing.T) {
	b, f := openFake(t)
	for name, blocks := range map[string]int{
		"b4-h40-g40-n129-m3-d64-bf16":        320,
		"b6-h4-g2-n16-m200-d128-f16-causal":  24,
		"b2-h2-g1-n7-m9-d80-dv8-bf16-shift2": 4,
		"b2-h2-g1-n7-m0-d80-bf16":            4,
		"b2-h2-g1-n0-m7-d80-bf16":            0,
	} {
		c := newDeviceCall(t, b, name)
		c.fwdOptions.Kernel, f.launches = "cuda/fwd_sm90_short", nil
		require.NoError(t, c.forward(), name)
		if blocks > 0 {
			require.Len(t, f.launches, 1)
			require.Equal(t, blocks, f.launches[0].blocks, name)
		}
		c.close(t)
	}
	for name, want := range map[string]string{
		"b64-h16-g16-n128-m128-d64-bf16-causal":      "fwd_sm90_short",
		"b8-h16-g16-n4096-m77-d128-bf16":             "fwd_sm90_short",
		"b64-h12-g12-n197-m197-d64-bf16":             "fwd_sm90_short",
		"b64-h16-g16-n257-m257-d80-bf16":             "fwd_sm90",
		"b4-h16-g16-n4096-m4096-d128-bf16":           "fwd_sm90",
		"b64-h16-g16-n128-m128-d256-bf16":            "fwd_sm90",
		"b64-h16-g16-n128-m128-d64-bf16-causal-sink": "fwd_sm90",
	} {
		id, err := b.choose("", problem(t, name).Ask(flashkit.PassForward), false)
		require.NoError(t, err)
		require.Equal(t, want, families[id].name, name)
	}
	k := b.Kernels()[fwdSM90Short]
	require.Equal(t, "does not support sink", k.Fits(problem(t, "b1-h2-g1-n7-m9-d64-bf16-sink").Ask(k.Pass)))
}
