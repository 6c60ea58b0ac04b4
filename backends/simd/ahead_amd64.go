//go:build !noasm && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// An ahead is memory that is needed soon. While a routine computes scores it brings
// some of that into the second-level cache, so that nobody waits for it later.
// What was added last comes first.
type ahead struct {
	spans [4]span
	n     int
}

// A span is bytes in a row, of which so many are taken.
type span struct {
	from         unsafe.Pointer
	bytes, taken int
}

func (a *ahead) clear() { a.n = 0 }

// add adds n rows of t, from row r on. They must lie side by side; others are left out.
func (a *ahead) add(t *flashkit.Tensor, b, h, r, n int) {
	dim := t.Shape()[3]
	if n <= 0 || rowStep(t) != dim {
		return
	}
	if at := t.Offset(b, h, r); t.DType() == flashkit.Float32 {
		a.addFloats(t.Float32s()[at:][:n*dim])
	} else {
		x := t.Uint16s()[at:][:n*dim]
		a.push(unsafe.Pointer(&x[0]), 2*len(x))
	}
}

func (a *ahead) addFloats(x []float32) { a.push(unsafe.Pointer(&x[0]), 4*len(x)) }

func (a *ahead) push(from unsafe.Pointer, bytes int) {
	a.spans[a.n] = span{from: from, bytes: bytes}
	a.n++
}

// take returns where the next bytes lie, about as many as scores fetches with so many
// rows, or else where rows do.
func (a *ahead) take(n, dim int, rows *float32) *float32 {
	for ; a.n > 0; a.n-- {
		if s := &a.spans[a.n-1]; s.taken < s.bytes {
			p := unsafe.Add(s.from, s.taken)
			s.taken += 2 * n * dim
			return (*float32)(p)
		}
	}
	return rows
}
