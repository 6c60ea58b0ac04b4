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

func fitsAVX512BF16(p flashkit.Problem) string { return fitsPairs(avx512bf16, p) }

func fitsPairs(t tier, p flashkit.Problem) string {
	return refusesAllBut(flashkit.BFloat16, p, t.refuses(p))
}

// The paces are those of a processor that multiplies pairs no faster than
// float32.
var (
	fwdPairPace = pace{start: 1100, flop: .0098, pair: .13, element: .17, pack: .13, feature: 1}
	bwdPairPace = pace{start: 5900, flop: .011, pair: .01, element: .84, pack: .38}
)

// pairPace returns a pace with products at the rate of this processor.
func pairPace(c pace) pace {
	c.flop /= pairRate()
	return c
}

// pairRate is how many times the rate of float32 this processor multiplies pairs at:
// 2 or 1 or a half, and no feature flag tells which. It is measured once, in some
// tens of microseconds, and rounded, so that it is the same in every process.
var pairRate = sync.OnceValue(func() float64 {
	if !avx512bf16.has {
		return 1
	}
	const rounds, tries = 256, 8
	rate := func(l peakLoop) float64 { // of this core; peakLoop.rate takes all of them, and milliseconds
		best := time.Hour
		for range tries {
			start := time.Now()
			l.run(rounds)
			best = min(best, time.Since(start))
		}
		return l.flops / float64(max(1, best))
	}
	ratio := rate(loopAVX512BF16) / rate(loopAVX512)
	return math.Exp2(max(-1, min(math.Round(math.Log2(ratio)), 1)))
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
	rows, step := tileRows(t, b, h, from, n, halves(buf))
	transposeColumns(dst, pairLanes, rows, step, pairWords(t.Shape()[3]), pairLanes)
}

// transposeColumns sets dst[c][r] to the pair rows[r][2c], rows[r][2c+1] for words
// pairs of n rows, step elements apart. It takes both by sixteen, and reads the rows
// so far.
func transposeColumns(dst []uint32, dstStep int, rows []uint16, step, words, n int) {
	for c := 0; c < words; c += 16 {
		for r := 0; r < n; r += 16 {
			transposePairsAVX512BF16(&dst[c*dstStep+r], dstStep, &rows[r*step+2*c], step)
		}
	}
}

// pairRows sets dst, [n/2][dim], to pairs of n rows of t. If n is odd, the row
// that the last one lacks is 0.
func pairRows(dst []uint32, t *flashkit.Tensor, b, h, from, n int) {
	rowsOf(t, b, h, from, n).pair(dst)
}

// A halfRows is n rows of halves, some elements apart.
type halfRows struct {
	rows         []uint16
	step, dim, n int
}

func rowsOf(t *flashkit.Tensor, b, h, from, n int) halfRows {
	return halfRows{t.Uint16s()[t.Offset(b, h, from):], rowStep(t), t.Shape()[3], n}
}

// keysOf is rowsOf keys of a sequence, which may lie in pages. They are in buf if they
// cannot be read where they lie.
func (j *job) keysOf(t *flashkit.Tensor, s *seqTile, k, n int, buf []uint16) halfRows {
	if j.p.Page == 0 {
		return rowsOf(t, s.KVBatch, s.g, s.K0+k, n)
	}
	if at, run := j.call.KeyRun(t, s.b, s.g, k); run >= n {
		return halfRows{t.Uint16s()[at:], rowStep(t), t.Shape()[3], n}
	}
	return j.copyKeys(t, s, k, n, buf, t.Shape()[3])
}

// copyKeys copies keys of a sequence to rows some elements apart.
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

// pair is pairRows of x.
func (x halfRows) pair(dst []uint32) {
	if x.n > 1 {
		pairRowsAVX512BF16(&dst[0], &x.rows[0], x.step, x.dim, x.n/2)
	}
	if x.n%2 == 1 {
		for c, y := range x.rows[(x.n-1)*x.step:][:x.dim] {
			dst[x.n/2*x.dim+c] = uint32(y)
		}
	}
}

// wholePart splits the keys [from, to) of a tile of n query rows. It returns the
// end of the part that begins at from, and whether all rows see all of it. Such a
// part consists of whole steps of keys, of which a product takes all or none: it
// begins at a multiple of step, and ends at one or with the last key of all. In a
// step of which some row sees only a part, the rest would leave a trace if it held
// NaN. step is a power of 2.
func wholePart(s *flashkit.Seq, row, n, from, to, step int) (until int, whole bool) {
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

// newPage returns place for a block of 16-bit keys that lie in pages.
func (j *job) newPage(ws *arena, keys, dim int) []uint16 {
	if n := j.pageFloats(keys, dim); n > 0 {
		return halves(takeWords(ws, n))
	}
	return nil
}

// pageFloats returns the floats that newPage takes.
func (pl *plan) pageFloats(keys, dim int) int {
	if pl.p.Page == 0 {
		return 0
	}
	return keys * pairWords(dim)
}
