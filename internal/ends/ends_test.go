package ends_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/ends"
)

func TestEnds(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, x := range []float32{0, 1, -math.MaxFloat32, math.MaxFloat32, 1e-45} {
		require.Equal(t, x, ends.Logit(x))
		require.Equal(t, x, ends.Slope(x))
	}
	require.Equal(t, -inf, ends.Logit(-inf), "no sink, or no earlier keys")
	for _, x := range []float32{ends.Logit(inf), ends.Logit(nan), ends.Slope(inf), ends.Slope(-inf), ends.Slope(nan)} {
		require.True(t, x != x, x)
	}
}
