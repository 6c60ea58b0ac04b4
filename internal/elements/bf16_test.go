package elements

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
)

// All ways round to the bits of package half, for every length, and change nothing after the end.
func TestBF16(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 3))
	special := []uint32{0, 1 << 31, 0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0x00800000}
	for name, way := range ways() {
		for n := range 150 {
			x, bits, back := make([]float32, n), make([]uint16, n+1), make([]float32, n+1)
			for i := range x {
				if x[i] = math.Float32frombits(r.Uint32()); r.IntN(3) == 0 {
					x[i] = math.Float32frombits(special[r.IntN(len(special))])
				}
			}
			bits[n], back[n] = 7, 7
			way.toBF16(bits[:n], x)
			way.fromBF16(back[:n], bits[:n])
			require.Equal(t, uint16(7), bits[n])
			require.Equal(t, float32(7), back[n])
			for i, v := range x {
				require.Equal(t, half.ToBF16(v), bits[i], "%s: %x of %d", name, math.Float32bits(v), n)
				require.Equal(t, math.Float32bits(half.FromBF16(bits[i])), math.Float32bits(back[i]), name)
			}
		}
	}
}
