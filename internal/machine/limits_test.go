package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

func TestBenchLimits(t *testing.T) {
	limits := HostLimits([]flashkit.DType{flashkit.Float32, flashkit.BFloat16})
	require.Len(t, limits, 3)
	for i, name := range []string{"f32", "bf16", "copy"} {
		l := limits[i]
		require.Equal(t, name, l.Name)
		require.Equal(t, "host", l.Memory)
		require.Positive(t, l.GFLOPS+l.BytesPerSecond)
		require.NotEmpty(t, l.How)
	}
}
