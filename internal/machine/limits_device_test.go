package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/gputest"
)

func TestDeviceLimits(t *testing.T) {
	limits, err := DeviceLimits(nil, nil)
	require.NoError(t, err)
	require.Empty(t, limits)
	g := gputest.New()
	gpu, err := cuda.OpenWith(g.Driver(), 0)
	require.NoError(t, err)
	limits, err = DeviceLimits(gpu, []flashkit.DType{flashkit.Float32, flashkit.BFloat16})
	require.NoError(t, err)
	require.Len(t, limits, 3)
	for i, name := range []string{"f32", "bf16", "copy"} {
		require.Equal(t, name, limits[i].Name)
		require.Equal(t, Device, limits[i].Memory)
		require.Positive(t, max(limits[i].GFLOPS, limits[i].BytesPerSecond))
	}
	require.Positive(t, g.Launched["limits_f32"])
	require.Positive(t, g.Launched["limits_sm90_bf16"])
	require.Positive(t, g.Launched["limits_copy"])
	require.NoError(t, gpu.Close())
	require.Empty(t, g.Live)
}
