package flashkit_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Hostile sizes and offsets must not cause a panic, an allocation of the claimed size, or a loop
// over the claimed elements.
func TestHostileSizes(t *testing.T) {
	f32 := flashkit.F32[float32]
	sizes := []int{-1, math.MinInt, math.MaxInt}
	for _, x := range []uint64{1 << 31, 1 << 40} { // variables, as constants do not fit an int of 32 bits
		sizes = append(sizes, int(x))
	}
	for _, x := range sizes {
		for _, y := range []int{0, 1, 3, x} {
			zeros := flashkit.Zeros(flashkit.Float32, y, x, 3, x)
			require.True(t, zeros.Len() == 0, "Zeros %d %d", x, y)
			require.Equal(t, [4]int{y, x, 3, x}, zeros.Shape())

			flashkit.DocumentRanges(x, y)
			flashkit.PrefixRanges(x, y, 3)
			flashkit.PrefixRanges(y, 3, x)
			flashkit.BlockRanges(x, y, 3)
			flashkit.BlockRanges(y, 3, x)
			flashkit.SinkRanges(x, y, 3, 3)
			flashkit.SinkRanges(y, x, 3, x)

			view := f32(make([]float32, 4), 1, 1, 2, 2).WithStrides(x, y, x)
			view.Offset(0, 0, 1)
			view.Repeated(0, 0, 1)

			band := flashkit.Window(x, y).Shift(x)
			band.Diagonals(y, x)
			p := flashkit.Problem{QLen: y, KVLen: x, Band: band}
			p.Keys(x)
			p.Queries(y)

			for _, s := range [][4]int{{x, y, 3, 4}, {x, 1, y, 4}, {1, x, y, 4}, {y, 1, 1, x}} {
				from := f32(make([]float32, 4), s[0], s[1], s[2], s[3])
				for _, from := range []flashkit.Tensor{from, from.WithStrides(0, 0, 0)} {
					for _, scales := range []int{1, s[3]/32 + 1} {
						to := flashkit.Int8s(make([]int8, 4), s[0], s[1], s[2], s[3])
						scale := f32(make([]float32, 4), s[0], s[1], s[2], scales)
						_ = flashkit.QuantizeRows(to, scale, from, nil, nil)
						_ = flashkit.QuantizeRows(to, scale, from, nil, make([]int32, 4))
						_ = flashkit.QuantizeRows(to, scale, from, []int32{int32(x)}, nil)
					}
				}
			}
		}
	}
}
