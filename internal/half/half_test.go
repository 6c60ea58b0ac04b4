package half

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// format describes a binary format: it has bits fraction bits, a smallest normal number of 2^minExp
// and a largest finite value. One slow rounding routine in float64 checks both conversions with it.
type format struct {
	name   string
	from   func(uint16) float32
	to     func(float32) uint16
	bits   int
	minExp int
	max    float64
}

var formats = []format{
	{"f16", FromF16, ToF16, 10, -14, 65504},
	{"bf16", FromBF16, ToBF16, 7, -126, 0x1.fep127},
}

// round returns x rounded to the format, by the definition of rounding.
func (f format) round(x float64) float64 {
	_, e := math.Frexp(x) // |x| is in [2^(e-1), 2^e)
	ulp := math.Ldexp(1, max(e-1, f.minExp)-f.bits)
	y := math.RoundToEven(x/ulp) * ulp
	if math.Abs(y) > f.max {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return y
}

func TestEveryPatternRoundTrips(t *testing.T) {
	for _, f := range formats {
		for h := range 1 << 16 {
			x := f.from(uint16(h))
			if math.IsNaN(float64(x)) {
				require.True(t, math.IsNaN(float64(f.from(f.to(x)))), "%s %#04x", f.name, h)
				continue
			}
			require.Equal(t, uint16(h), f.to(x), "%s %#04x = %g", f.name, h, x)
		}
	}
}

func TestNarrowingRoundsToNearestEven(t *testing.T) {
	for _, f := range formats {
		check := func(x float32) {
			want := f.round(float64(x))
			got := float64(f.from(f.to(x)))
			require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%s %b: want %g, got %g", f.name, x, want, got)
		}
		// Every midpoint between neighbors, and the float32 on each side of it.
		for h := range uint16(0x7f80) {
			a, b := float64(f.from(h)), float64(f.from(h+1))
			if math.IsNaN(b) || math.IsInf(a, 0) {
				continue
			}
			mid := float32((a + math.Min(b, 2*f.max)) / 2)
			for _, x := range []float32{mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, float32(math.Inf(1)))} {
				check(x)
				check(-x)
			}
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 1 << 20 {
			if x := math.Float32frombits(r.Uint32()); x == x {
				check(x)
			}
		}
	}
}

func TestNaNStaysNaN(t *testing.T) {
	for _, f := range formats {
		for _, bits := range []uint32{0x7f800001, 0xff800001, 0x7fc00000, 0x7fffffff, 0x7f801000} {
			x := f.from(f.to(math.Float32frombits(bits)))
			require.True(t, x != x, "%s %#08x became %g", f.name, bits, x)
		}
	}
}
