package matmul_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/matmul"
)

// PackIn equals Pack, with or without enough space in the block. Products have the same bits, and
// words after the packed matrix are untouched.
func TestPackIn(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for precision := range matmul.Precisions {
			b := []matmul.Matrix{random(r, 384, 96, true, false), random(r, 50+r.IntN(400), 1+r.IntN(200), false, true), random(r, 7, 49, false, false)}
			for _, words := range []int{1 << 20, 384*96 + 100, 384 * 96 / 2, 1, 0, -1} {
				block, apart, together := matmul.NewBlock(words), make([]matmul.Packed, len(b)), make([]matmul.Packed, len(b))
				for i := range b {
					apart[i].Precision, together[i].Precision = precision, precision
					apart[i].Pack(b[i])
					together[i].PackIn(block, b[i])
				}
				for i := range b {
					require.Equal(t, bitsOf(apart[i].Memory()), bitsOf(together[i].Memory()), "%v, %d words, %d", precision, words, i)
					for _, workers := range []int{1, 2} {
						a, k, n := random(r, 16, b[i].Rows, false, false), b[i].Rows, b[i].Cols
						want, got := make([]float32, 16*n), make([]float32, 16*n)
						require.NoError(t, e.Run(t.Context(), &matmul.Args{C: matmul.Dense(want, 16, n), A: a, B: &apart[i], Workers: workers}))
						require.NoError(t, e.Run(t.Context(), &matmul.Args{C: matmul.Dense(got, 16, n), A: a, B: &together[i], Workers: workers}))
						require.Equal(t, bitsOf(want), bitsOf(got), "%v, %d words, K %d", precision, words, k)
					}
				}
				together[0].Pack(b[1]) // within its part of the block, or in other memory
				require.Equal(t, bitsOf(apart[1].Memory()), bitsOf(together[0].Memory()))
				require.Equal(t, bitsOf(apart[2].Memory()), bitsOf(together[2].Memory()))
			}
		}
	})
	require.Nil(t, matmul.NewBlock(math.MaxInt))
}
