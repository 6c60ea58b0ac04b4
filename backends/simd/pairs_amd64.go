//go:build !noasm && !purego

package simd

import (
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// What the kernels of AVX512-BF16 share. Their products are of pairs of bf16,
// 32-bit words with the first of the pair in the low half: two neighbors of a row,
// or two rows of a column.

// pairLanes is the query rows of a tile, those of avx512Lanes.
const pairLanes = 32

func fitsAVX512BF16(p flashkit.Problem) string {
	if p.DType != flashkit.BFloat16 {
		return "it takes bf16 only"
	}
	return avx512bf16.missing()
}

// dotRate is the rate of the kernels on pairs. Some processors multiply pairs as
// fast as float32, which is twice the rate; others leave them to a slow unit and
// expect matrix instructions. No feature flag tells them apart, so the two loops
// are timed, once in a process. The nearest power of two is left of the ratio,
// so that noise does not decide which kernel runs.
var dotRate = sync.OnceValue(func() float64 {
	const tries, rounds = 8, 256 // some microseconds; the vector units may have to wake up first
	best := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for range tries {
		for i, peak := range []func(n int){fmaPeakAVX512, dotPeakAVX512BF16} {
			start := time.Now()
			peak(rounds)
			best[i] = min(best[i], time.Since(start))
		}
	}
	ratio := 2 * float64(best[0]+1) / float64(best[1]+1)
	return avx512Lanes.rate * math.Exp2(math.Round(math.Log2(ratio)))
})

// pairWords is the words of a row of pairs, rounded up to what transposePairs
// takes.
func pairWords(dim int) int { return (dim + 31) / 32 * 16 }

// halves returns words as twice as many halves.
func halves(words []uint32) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(&words[0])), 2*len(words))
}

// pairColumns sets dst, [pairWords][lanes], to pairs of columns of n rows of t,
// and 0 in the lanes and columns beyond them. buf has the size of dst.
func pairColumns(dst, buf []uint32, t *flashkit.Tensor, b, h, from, n int) {
	dim := t.Shape()[3]
	words := pairWords(dim)
	rows, step := halves(buf), 2*words
	if n == pairLanes && dim == step {
		rows, step = t.Uint16s()[t.Offset(b, h, from):], rowStep(t)
	} else {
		clear(rows)
		for i := range n {
			copy(rows[i*step:][:dim], t.Uint16s()[t.Offset(b, h, from+i):])
		}
	}
	for c := 0; c < words; c += 16 {
		for i := 0; i < pairLanes; i += 16 {
			transposePairsAVX512BF16(&dst[c*pairLanes+i], pairLanes, &rows[i*step+2*c], step)
		}
	}
}

// pairRows sets dst, [n/2][dim], to pairs of n rows of t. If n is odd, the row
// that the last one lacks is 0.
func pairRows(dst []uint32, t *flashkit.Tensor, b, h, from, n int) {
	dim := t.Shape()[3]
	rows := t.Uint16s()[t.Offset(b, h, from):]
	if n > 1 {
		pairRowsAVX512BF16(&dst[0], &rows[0], rowStep(t), dim, n/2)
	}
	if n%2 == 1 {
		last := t.Uint16s()[t.Offset(b, h, from+n-1):][:dim]
		for c, x := range last {
			dst[n/2*dim+c] = uint32(x)
		}
	}
}

// wholePart splits the keys [from, to) of a tile of n query rows. It returns the
// end of the part that begins at from, and whether all rows see all of it. Such a
// part consists of whole pairs: it begins at an even key, and ends at one or with
// the last key of all. In a pair of which some row sees only one key, the other
// would leave a trace if it held NaN.
func wholePart(p *flashkit.Problem, row, n, from, to int) (until int, whole bool) {
	_, end := p.Keys(row)
	begin, _ := p.Keys(row + n - 1)
	begin = (begin + 1) &^ 1
	if end < p.KVLen {
		end &^= 1
	}
	switch {
	case begin >= end || from >= end:
		return to, false
	case from < begin:
		return min(to, begin), false
	}
	return min(to, end), true
}
