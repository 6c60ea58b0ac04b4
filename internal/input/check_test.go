package input

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

func TestDifference(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, test := range []struct {
		dtype     flashkit.DType
		got, want float64
		distance  float64 // NaN for another class
	}{
		{0, 1, 1, 0}, {0, 1, 1.5, .5}, {0, nan, nan, 0}, {0, inf, inf, 0}, {0, -inf, -inf, 0},
		{0, nan, 1, nan}, {0, 1, nan, nan}, {0, inf, nan, nan}, {0, nan, -inf, nan}, {0, inf, -inf, nan}, {0, inf, 1e30, nan}, {0, 1e30, inf, nan},
		{0, inf, 1e39, 0}, {0, -inf, -1e39, 0}, {0, -inf, 1e39, nan}, {0, 3e38, 1e39, nan},
		{flashkit.Float16, inf, 70000, 0}, {flashkit.Float16, 65504, 70000, nan}, {flashkit.Float16, 65504, 65510, 6}, {flashkit.BFloat16, inf, 70000, nan},
	} {
		a := NewTensor(test.dtype, [4]int{1, 2, 3, 2}, BHSD)
		want := make([]float64, a.Len())
		SetValue(&a, 7, float32(test.got))
		want[7] = test.want
		c := newDifference("o", &a, a.Shape())
		for i, got := range elements(&a) {
			c.add(i, got, want[i])
		}
		name := fmt.Sprintf("%v %v %v", test.dtype, test.got, test.want)
		if math.IsNaN(test.distance) {
			require.True(t, math.IsNaN(float64(c.Error)), name)
			require.Equal(t, fmt.Sprintf("o[0 1 0 1] is %.6g where the oracle has %.6g", Value(&a, 7), test.want), c.Wrong)
			continue
		}
		require.Equal(t, test.distance, float64(c.Error), name)
		require.Empty(t, c.Wrong, name)
	}
}
