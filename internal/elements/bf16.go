package elements

import "github.com/flashkit-go/flashkit/internal/half"

// ToBF16 sets dst[i] to the bits of x[i] in bf16, rounded to nearest, ties to even. dst is at least
// as long as x.
func ToBF16(dst []uint16, x []float32) { chosen.toBF16(dst[:len(x)], x) }

func (u *isa) toBF16(dst []uint16, x []float32) {
	if u != nil && len(x) >= u.convert {
		u.narrow(&dst[0], &x[0], len(x))
		return
	}
	for i, v := range x {
		dst[i] = half.ToBF16(v)
	}
}

// FromBF16 sets dst[i] to the number with the bits x[i] in bf16. x is at least as long as dst.
func FromBF16(dst []float32, x []uint16) { chosen.fromBF16(dst, x[:len(dst)]) }

func (u *isa) fromBF16(dst []float32, x []uint16) {
	if u != nil && len(x) >= u.convert {
		u.widen(&dst[0], &x[0], len(x))
		return
	}
	for i, v := range x {
		dst[i] = half.FromBF16(v)
	}
}
