package conformance

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// TestCompareAtTheEnds holds compare to its rules: NaN is met by NaN alone, an infinity by
// itself, and a large LSE is held to its last places, whatever the bound of the others.
func TestCompareAtTheEnds(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, x := range []struct {
		output    string
		want, got float64
		ok        bool
	}{
		{"o", nan, nan, true},
		{"o", nan, 0, false},
		{"o", nan, inf, false},
		{"o", 0, nan, false},
		{"o", inf, nan, false},
		{"o", inf, inf, true},
		{"o", inf, -inf, false},
		{"o", inf, math.MaxFloat32, false},
		{"o", 1, 1.25, true},
		{"o", 1, 1.75, false},
		{"lse", -inf, -inf, true},
		{"lse", -inf, -math.MaxFloat32, false},
		{"lse", -1e30, -inf, false},
		{"lse", -1e30, -1.0000001e30, true},
		{"lse", -1e30, -1.000001e30, false},
		{"lse", 1 << 21, 1<<21 + 0.25, true},
		{"lse", 1 << 21, 1<<21 + 2, false},
		{"lse", 1, 1.25, true},
		{"o", 1 << 21, 1<<21 + 2, false},
	} {
		y := place(x.output, flashkit.Float32, [4]int{1, 1, 1, 1}, bhsd, false)
		y.fill([4]int{1, 1, 1, 1}, func(b, r int) (int, int) { return b, r }, true)
		y.set([]float32{float32(x.got)})
		n := map[string]int{"o": sumO, "lse": sumLSE}[x.output]
		err := compare(y, n, []float64{x.want}, 0.5)
		require.Equal(t, x.ok, err == nil, "%s: %g for %g: %v", x.output, x.got, x.want, err)
	}
}

// Ordinary rows determine a case's bound: further rows of NaN or of the lowest float32 do not
// widen it.
func TestBoundsAtTheEnds(t *testing.T) {
	for _, c := range Traps() {
		_, bound, err := c.InDType(c.types()[0]).expect()
		require.NoError(t, err)
		for _, i := range written(c.Problem) {
			require.Greater(t, bound[i], 0., "%s: %s", c.Name, outputNames[i])
			if i == sumLSE {
				require.Less(t, bound[i], 0.5, c.Name)
			}
		}
	}
}
