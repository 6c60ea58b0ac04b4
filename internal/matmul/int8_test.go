package matmul_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

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

// levelsOf returns the integers and the scale of a vector, computed from the definition.
func levelsOf(x []float32) (q []int64, scale float32) {
	most := float32(0)
	for _, v := range x {
		most = max(most, max(v, -v))
	}
	q = make([]int64, len(x))
	if scale = most / 127; scale < 0x1p-126 {
		return q, 0
	}
	for i, v := range x {
		product := v * (127 / most)
		q[i] = int64(math.RoundToEven(float64(product)))
	}
	return q, scale
}

// column returns column i of m.
func column(m matmul.Matrix, i int) (x []float32) {
	each(matmul.Matrix{Data: m.Data[i*m.ColStride:], Rows: m.Rows, Cols: 1, RowStride: m.RowStride, ColStride: m.ColStride}, func(_, _ int, v *float32) { x = append(x, *v) })
	return x
}

// times returns x multiplied, or divided, by factors.
func times(x, by []float32, divided bool) []float32 {
	for i, f := range by {
		if divided {
			x[i] /= f
		} else {
			x[i] *= f
		}
	}
	return x
}

// A Scale of another length, or with a factor out of its range, is refused by name. Other precisions
// ignore Scale.
func TestScaleOfColumns(t *testing.T) {
	e := matmul.New()
	defer e.Close()
	for _, scale := range [][]float32{{}, {1}, {1, 1, 1}, {1, 0}, {1, -1}, {float32(math.NaN()), 1}, {1, float32(math.Inf(1))}, {1, 0x1p-61}, {0x1p61, 1}} {
		p := draw(seeded(t), shape{2, 3, 2}, uint(matmul.Int8)<<12)
		p.B.Scale = scale
		p.B.Pack(p.b)
		err := e.Run(t.Context(), &p.Args)
		require.ErrorContains(t, err, "B.Scale", "%v", scale)
		p.B.Precision = matmul.Float32
		p.B.Pack(p.b)
		run(t, e, p)
	}
}

// If one column of A is much larger than the others, factors reduce the error.
func TestScaleReducesTheError(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		e, s := matmul.New(), shape{8, 40, 96}
		defer e.Close()
		p := draw(seeded(t), s, uint(matmul.Int8)<<12)
		by := make([]float32, s.k)
		for i := range by {
			by[i] = 1
		}
		for i := range s.m { // every row has the large feature, and its weights have room for it
			x := &p.A.Data[i*p.A.RowStride+17]
			*x = float32(math.Copysign(60, float64(*x)))
		}
		for j := range s.n {
			p.b.Data[17*p.b.RowStride+j*p.b.ColStride] /= 16
		}
		p.B.Pack(p.b)
		by[17] = 1. / 16
		var errors [2]float64
		for n := range errors {
			run(t, e, p)
			for i := range s.m {
				for j := range s.n {
					want := 0.0
					for k, x := range column(p.A.T(), i) {
						want += float64(x) * float64(column(p.b, j)[k])
					}
					errors[n] += math.Abs(float64(p.C.Data[i*p.C.RowStride+j]) - want)
				}
			}
			p.B.Scale = by
			p.B.Pack(p.b)
		}
		require.Less(t, 2*errors[1], errors[0])
	})
}

// Sums of 8-bit products equal sums of int64, on every instruction set and for every tail.
func TestInt8IsExact(t *testing.T) {
	trials := 10_000
	if testing.Short() {
		trials = 1500
	}
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for i := range trials {
			s := shape{1 + r.IntN(20), 1 + r.IntN(100), 1 + r.IntN(120)}
			p := draw(r, s, uint(matmul.Int8)<<12|uint(r.Uint32())&15)
			if i%2 == 0 { // integers, up to the ends of their range: both scales are 1
				whole := func(_, _ int, x *float32) { *x = float32(r.IntN(3)-1) * float32(127-r.IntN(2)*r.IntN(127)) }
				each(p.A, whole)
				each(p.b, whole)
			}
			by := make([]float32, s.k)
			for j := range by {
				if by[j] = 1; i%3 == 0 {
					by[j] = float32(math.Exp2(4 * r.NormFloat64()))
				}
			}
			if i%3 == 0 {
				p.B.Scale = by
			}
			p.B.Pack(p.b)
			run(t, e, p)
			for i := range s.m {
				a, rowScale := levelsOf(times(column(p.A.T(), i), by, false))
				for j := range s.n {
					b, scale := levelsOf(times(column(p.b, j), by, true))
					sum := int64(0)
					for k, x := range a {
						sum += x * b[k]
					}
					want, got := float32(sum)*rowScale*scale, p.C.Data[i*p.C.RowStride+j]
					if want != got {
						require.Failf(t, "sum", "%v c[%d][%d] = %g, not %g", s, i, j, got, want)
					}
				}
			}
		}
	})
}

// The largest K has the largest sums.
func TestInt8AtTheEndsOfItsRange(t *testing.T) {
	const k = 1 << 17
	x := make([]float32, k)
	for i := range x {
		x[i] = 127
	}
	matmul.EachISA(t, func(t *testing.T) {
		e, b, c := matmul.New(), matmul.Packed{Precision: matmul.Int8}, []float32{0}
		defer e.Close()
		b.Pack(matmul.Dense(x, k, 1))
		for _, sign := range []float32{1, -1} {
			a := make([]float32, k)
			for i := range a {
				a[i] = sign * 127
			}
			require.NoError(t, e.Run(t.Context(), &matmul.Args{C: matmul.Dense(c, 1, 1), A: matmul.Dense(a, 1, k), B: &b}))
			require.Equal(t, sign*float32(127*127*k), c[0])
		}
	})
}

// NaN and infinity reach all results of their row or column, and no other result.
func TestInt8OfNotFinite(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for k := 1; k < 70; k++ {
				p := draw(r, shape{9, 60, k}, uint(matmul.Int8)<<12|uint(r.Uint32())&15)
				row, col, at := r.IntN(9), r.IntN(60), r.IntN(k)
				p.A.Data[row*p.A.RowStride+at*p.A.ColStride] = float32(x)
				p.b.Data[at*p.b.RowStride+col*p.b.ColStride] = float32(x)
				p.B.Pack(p.b)
				run(t, e, p)
				each(p.C, func(i, j int, v *float32) {
					require.Equal(t, i == row || j == col, *v != *v, "%g in row %d and column %d: c[%d][%d] = %g", x, row, col, i, j, *v)
				})
			}
		}
	})
}
