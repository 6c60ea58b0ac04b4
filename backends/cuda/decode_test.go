package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/slow"
)

// The parts of a decode call are a cluster: one launch, no workspace and no counters to set.
func TestDecodeClusters(t *testing.T) {
	slow.UnderRace(t)
	b, f := openFake(t)
	for name, want := range map[string]string{
		"b1-h32-g8-n1-m1024-d128-bf16":          "decode_sm80_cluster_bf16_d128",
		"b2-h4-g2-n1-m500-d64-f32":              "decode_sm80_cluster_f32_d64",
		"b1-h32-g8-n1-m1024-d128-bf16-softcap5": "decode_sm80_features_cluster_bf16_d128",
		"b200-h8-g2-n1-m64-d128-f16":            "decode_sm80_f16_d128",
	} {
		c := newDeviceCall(t, b, name)
		c.fwdOptions.Kernel, f.launches = "cuda/decode_sm80", nil
		require.NoError(t, c.forward()) // the first call loads
		for _, call := range []string{"cuMemAllocAsync", "cuMemsetD32Async"} {
			f.failures[call] = f.fail(call, 2)
		}
		require.NoError(t, c.forward())
		clear(f.failures)
		require.Equal(t, []string{want, want}, f.names())
		c.close(t)
	}
	b.drv.LaunchCluster = nil
	c := newDeviceCall(t, b, "b1-h32-g8-n1-m1024-d128-bf16")
	c.fwdOptions.Unpaired, f.launches = true, nil
	require.NoError(t, c.forward())
	require.Equal(t, []string{"decode_sm80_bf16_d128"}, f.names())
	c.close(t)
}
