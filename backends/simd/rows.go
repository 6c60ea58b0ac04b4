package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// view returns n rows of head h of batch b of t, from row r on, as float32. step is the distance
// between rows, in elements. It reads float32 rows in place and widens 16-bit rows into buf.
func view(t *flashkit.Tensor, b, h, r, n int, buf []float32) (rows []float32, step int) {
	if n == 0 {
		return nil, 0
	}
	if t.DType() == flashkit.Float32 {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	dim := t.Shape()[3]
	for i := range n {
		load(buf[i*dim:][:dim], t, t.Offset(b, h, r+i))
	}
	return buf, dim
}

// rowStep returns the distance between rows. If the tensor has only one row, the stride may have
// any value, so rowStep returns 0.
func rowStep(t *flashkit.Tensor) int {
	if t.Shape()[2] == 1 {
		return 0
	}
	return t.Strides()[2]
}

// load sets dst to elements of t, widened to float32. from is the offset of the first element.
func load(dst []float32, t *flashkit.Tensor, from int) {
	switch t.DType() {
	case flashkit.Float32:
		copy(dst, t.Float32s()[from:])
	case flashkit.Float16:
		for i, x := range t.Uint16s()[from:][:len(dst)] {
			dst[i] = half.FromF16(x)
		}
	case flashkit.BFloat16:
		for i, x := range t.Uint16s()[from:][:len(dst)] {
			dst[i] = half.FromBF16(x)
		}
	}
}

// store writes src to t, rounded to t's type. to is the offset in t of the first element.
func store(t *flashkit.Tensor, to int, src []float32) {
	switch t.DType() {
	case flashkit.Float32:
		copy(t.Float32s()[to:], src)
	case flashkit.Float16:
		dst := t.Uint16s()[to:][:len(src)]
		for i, x := range src {
			dst[i] = half.ToF16(x)
		}
	case flashkit.BFloat16:
		dst := t.Uint16s()[to:][:len(src)]
		for i, x := range src {
			dst[i] = half.ToBF16(x)
		}
	}
}
