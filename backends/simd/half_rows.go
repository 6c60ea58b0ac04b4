//go:build (amd64 || arm64) && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// This file has the rows of 16-bit elements for kernels that multiply 16-bit elements directly,
// without widening.

// pairWords returns the number of 32-bit words for a row of dim 16-bit elements, rounded up to
// whole blocks of transposePairs.
func pairWords(dim int) int { return (dim + 31) / 32 * 16 }

// halves returns the memory of words as 16-bit elements.
func halves(words []uint32) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(&words[0])), 2*len(words))
}

// halfRows is n rows of 16-bit elements, step elements apart.
type halfRows struct {
	rows         []uint16
	step, dim, n int
}

func rowsOf(t *flashkit.Tensor, b, h, from, n int) halfRows {
	return halfRows{t.Uint16s()[t.Offset(b, h, from):], rowStep(t), t.Shape()[3], n}
}

// keysOf returns n keys of a sequence, from key k on. If these keys are in more than one page,
// keysOf copies the keys to buf.
func (j *job) keysOf(t *flashkit.Tensor, s *seqTile, k, n int, buf []uint16) halfRows {
	if j.p.Page == 0 {
		return rowsOf(t, s.KVBatch, s.g, s.K0+k, n)
	}
	if at, run := j.call.KeyRun(t, s.b, s.g, k); run >= n {
		return halfRows{t.Uint16s()[at:], rowStep(t), t.Shape()[3], n}
	}
	return j.copyKeys(t, s, k, n, buf, t.Shape()[3])
}

// copyKeys copies n keys of a sequence in pages, from key k on, to rows of dst that are step
// elements apart.
func (j *job) copyKeys(t *flashkit.Tensor, s *seqTile, k, n int, dst []uint16, step int) halfRows {
	dim, next := t.Shape()[3], rowStep(t)
	for i := 0; i < n; {
		at, run := j.call.KeyRun(t, s.b, s.g, k+i)
		for end := min(i+run, n); i < end; i++ {
			copy(dst[i*step:][:dim], t.Uint16s()[at:])
			at += next
		}
	}
	return halfRows{dst, step, dim, n}
}

// wholePart finds the first part of the keys [from, to) for a tile of n query rows. It returns the
// end of this part, and whether every row sees every key of the part. If every row does, the part
// consists of whole steps: it begins at a multiple of step, and ends at a multiple of step or at
// the sequence's last key. The reason is that a product takes all keys of a step, so NaN in a
// masked key would reach the sum. step is a power of 2.
func (s *seqTile) wholePart(row, n, from, to, step int) (until int, whole bool) {
	_, end := s.Keys(row)
	begin, _ := s.Keys(row + n - 1)
	begin = (begin + step - 1) &^ (step - 1)
	if end < s.M {
		end &^= step - 1
	}
	switch {
	case begin >= end || from >= end:
		return to, false
	case from < begin:
		return min(to, begin), false
	}
	return min(to, end), true
}

// newPage allocates room for copies of a block of 16-bit keys from pages. It returns nil if the
// call has no pages.
func (j *job) newPage(ws *pool.Arena, keys, dim int) []uint16 {
	if n := j.pageFloats(keys, dim); n > 0 {
		return halves(takeWords(ws, n))
	}
	return nil
}

// pageFloats returns the number of floats that newPage allocates.
func (pl *plan) pageFloats(keys, dim int) int {
	if pl.p.Page == 0 {
		return 0
	}
	return keys * pairWords(dim)
}
