package matmul_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// A product with bf16 weights has the bits of a float32 product with the same numbers, as both add in
// the same order.
func TestWeightsInBF16HaveTheBitsOfFloat32(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for i := range 60 {
			s := shape{1 + r.IntN(40), 1 + r.IntN(200), 1 + r.IntN(2*matmul.MostK)}
			p := draw(r, s, uint(i)<<6%(1<<11)&^(1<<8))
			each(p.b, func(_, _ int, x *float32) { *x = half.FromBF16(half.ToBF16(*x)) })
			p.B.Pack(p.b)
			run(t, e, p)
			want := append([]float32(nil), p.C.Data...)
			copy(p.C.Data, p.old.Data)
			p.B = &matmul.Packed{Precision: matmul.BF16Weights}
			p.B.Pack(p.b)
			run(t, e, p)
			require.Equal(t, bitsOf(want), bitsOf(p.C.Data), "%v", s)
		}
	})
}

// Numbers between bf16 values are rounded to nearest, ties to even. Beyond the range they become infinity.
func TestRoundingToBF16(t *testing.T) {
	inf := float32(math.Inf(1))
	for x, want := range map[float32]float32{
		1 + 0x1p-8: 1, 1 + 3*0x1p-8: 1 + 0x1p-6, 1 + 0x1p-8 + 0x1p-20: 1 + 0x1p-7,
		math.MaxFloat32: inf, -math.MaxFloat32: -inf, 0x1.fep127: 0x1.fep127,
	} {
		matmul.EachISA(t, func(t *testing.T) {
			e := matmul.New()
			defer e.Close()
			for _, precision := range []matmul.Precision{matmul.BF16Weights, matmul.BF16} {
				b := matmul.Packed{Precision: precision}
				b.Pack(matmul.Dense([]float32{x, 0}, 2, 1))
				c := []float32{7}
				require.NoError(t, e.Run(t.Context(), &matmul.Args{A: matmul.Dense([]float32{1, 1}, 1, 2), B: &b, C: matmul.Dense(c, 1, 1)}))
				require.Equal(t, want, c[0], "weight %g, %v", x, precision)
				if precision == matmul.BF16 {
					b.Pack(matmul.Dense([]float32{1, 1}, 2, 1))
					require.NoError(t, e.Run(t.Context(), &matmul.Args{A: matmul.Dense([]float32{x, 0}, 1, 2), B: &b, C: matmul.Dense(c, 1, 1)}))
					require.Equal(t, want, c[0], "row %g", x)
				}
			}
		})
	}
}

// BF16 takes half the memory; precisions have the names that programs use.
func TestPrecisions(t *testing.T) {
	for p, want := range []string{"f32", "bf16-weights", "bf16", "int8", "unknown"} {
		require.Equal(t, want, fmt.Sprint(matmul.Precision(p)))
	}
	var whole, halves matmul.Packed
	halves.Precision = matmul.BF16Weights
	for _, p := range []*matmul.Packed{&whole, &halves} {
		p.Pack(matmul.Dense(make([]float32, 384*384), 384, 384))
	}
	require.Equal(t, len(whole.Memory()), 2*len(halves.Memory()))
}
