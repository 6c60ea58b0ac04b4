package matmul_test

import (
	"math"

	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// operands returns A and B as the product uses them: rounded to bf16, or to integers with scales.
func (p *product) operands() (a, b matmul.Matrix) {
	a, b = copied(p.A, false), copied(p.b, false)
	if a.Cols == 0 {
		return a, b
	}
	bf16 := func(_, _ int, x *float32) { *x = half.FromBF16(half.ToBF16(*x)) }
	switch p.B.Precision {
	case matmul.BF16:
		each(a, bf16)
		each(b, bf16)
	case matmul.BF16Weights:
		each(b, bf16)
	case matmul.Int8:
		for i := range a.Rows {
			toLevels(rowsOf(a, i, i+1))
		}
		for i := range b.Cols {
			toLevels(rowsOf(b.T(), i, i+1))
		}
	}
	return a, b
}

// toLevels rounds the numbers of a row to 8-bit integers times the row's scale.
func toLevels(m matmul.Matrix) {
	most := 0.0
	each(m, func(_, _ int, x *float32) {
		if v := math.Abs(float64(*x)); v != v || v > most {
			most = v
		}
	})
	scale := float32(most) / 127
	each(m, func(_, _ int, x *float32) {
		switch {
		case most != most || math.IsInf(most, 0):
			*x = float32(math.NaN())
		case scale < 0x1p-126:
			*x = 0
		default:
			*x = scale * float32(math.RoundToEven(float64(*x*(127/float32(most)))))
		}
	})
}
