package simd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

func TestPeak(t *testing.T) {
	for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16} {
		rate, instructions := simd.Peak(dtype)
		require.Positive(t, rate, dtype)
		require.NotEmpty(t, instructions, dtype)
	}
}
