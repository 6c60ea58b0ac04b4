package flashkit

import (
	"math"

	"github.com/flashkit-go/flashkit/internal/half"
)

// ToF16 returns the elements of x rounded to IEEE binary16, ties to even, as bits for F16.
// Numbers that round beyond 65504 become infinite.
func ToF16(x []float32) []uint16 { return converted(x, half.ToF16) }

// ToBF16 returns the elements of x rounded to bfloat16, ties to even, as bits for BF16.
func ToBF16(x []float32) []uint16 { return converted(x, half.ToBF16) }

// ToF32 returns the elements of t's memory as float32, in memory order. A Bool becomes 0 or 1, and an Int32 is
// rounded. An Int8 is not multiplied by its scale.
// The result ignores t's strides and has t.Len() elements. For a tensor on a device ToF32
// returns an empty slice.
func ToF32(t Tensor) []float32 {
	switch t.DType() {
	case Float16:
		return converted(t.Uint16s(), half.FromF16)
	case BFloat16:
		return converted(t.Uint16s(), half.FromBF16)
	case Int32:
		return converted(t.Int32s(), func(x int32) float32 { return float32(x) })
	case Int8:
		return converted(t.Int8s(), func(x int8) float32 { return float32(x) })
	case Bool:
		return converted(t.Bools(), func(x bool) float32 {
			if x {
				return 1
			}
			return 0
		})
	}
	return append([]float32(nil), t.Float32s()...)
}

func converted[T, U any](x []T, f func(T) U) []U {
	y := make([]U, len(x))
	for i := range x {
		y[i] = f(x[i])
	}
	return y
}

// floats sets dst to elements of a data tensor, from offset at on.
func (t *Tensor) floats(dst []float32, at int) {
	if t.dtype == Float32 {
		copy(dst, t.Float32s()[at:])
		return
	}
	of := half.FromF16
	if t.dtype == BFloat16 {
		of = half.FromBF16
	}
	for i, x := range t.Uint16s()[at:][:len(dst)] {
		dst[i] = of(x)
	}
}

// finiteF16 returns x rounded to binary16, as bits and as a number. It is NaN if x rounds to infinity.
func finiteF16(x float32) (uint16, float32) {
	bits := half.ToF16(x)
	if y := half.FromF16(bits); !math.IsInf(float64(y), 0) {
		return bits, y
	}
	nan := float32(math.NaN())
	return half.ToF16(nan), nan
}
