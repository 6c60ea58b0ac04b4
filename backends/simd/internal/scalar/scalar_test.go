package scalar

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The error of Exp must be at most 0.52 units in the last place, for all results that float32 can
// represent, also subnormal ones.
func TestExp(t *testing.T) {
	step := uint32(1009)
	if testing.Short() {
		step = 65537
	}
	for bits := uint32(0); ; bits += step {
		x := math.Float32frombits(bits)
		want := math.Exp(float64(x))
		got := Exp(float64(x))
		ok := true
		switch nearest := float32(want); {
		case x != x:
			ok = got != got
		case math.IsInf(float64(nearest), 0):
			ok = got == nearest
		default:
			ulp := float64(math.Nextafter32(nearest, math.MaxFloat32)) - float64(nearest)
			ok = math.Abs(float64(got)-want) <= 0.52*ulp
		}
		if !ok {
			t.Fatalf("exp(%g) = %g, want %g", x, got, want)
		}
		if bits > math.MaxUint32-step {
			return
		}
	}
}

func TestExpSpecialValues(t *testing.T) {
	inf := math.Inf(1)
	require.Equal(t, float32(inf), Exp(inf))
	require.Equal(t, float32(inf), Exp(89))
	require.Equal(t, float32(0), Exp(-inf))
	require.Equal(t, float32(0), Exp(-104.5))
	require.Equal(t, float32(1), Exp(0))
}
