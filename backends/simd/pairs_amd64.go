//go:build !purego

package simd

import (
	"sync"

	"github.com/flashkit-go/flashkit"
)

// This file is shared by the AVX512-BF16 kernels, which multiply pairs of bf16. A pair is a 32-bit
// word with the first element in the low half. Its elements are neighbors in a row, or neighbors in
// a column.

// pairLanes is the number of query rows of a tile, equal to the lanes of avx512Lanes.
const pairLanes = 32

func fitsAVX512BF16(p flashkit.Problem) string { return fitsPairs(avx512bf16, p) }

func fitsPairs(t tier, p flashkit.Problem) string {
	return refusesAllBut(flashkit.BFloat16, p, t.refuses(p))
}

// Paces of the AVX512-BF16 kernels on a processor whose products of bf16 pairs are no faster than
// float32 products.
var (
	fwdPairPace = pace{start: 1155, flop: .0098, pair: .127, element: .07, pack: .112, feature: 1, fast: slowing{.62, .6}, narrow: slowing{1.16, 2.07}}
	bwdPairPace = pace{start: 2500, tile: 879, flop: .008, pair: .01, element: .527, pack: .279, fast: slowing{.62, .8}, narrow: slowing{1.68, 1.06}}
)

// pairPace adapts pace c to this processor's pairRate and wideRate. c was measured on a processor with
// pairRate 1 and wideRate 2, its factor fast on one with pairRate 2, and its factor narrow on one that
// also has wideRate 1.
func pairPace(c pace) pace {
	c.flop /= pairRate()
	if pairRate() == 2 {
		c = c.slowed(c.fast)
	}
	return widePace(c)
}

// pairRate is this processor's rate of bf16 pair products relative to float32: 2, 1 or 1/2. No CPU
// feature flag tells the rate, so it is measured once, in tens of microseconds. Rounding gives
// every process the same rate.
var pairRate = sync.OnceValue(func() float64 {
	if !avx512bf16.has {
		return 1
	}
	return relativeRate(loopAVX512BF16, loopAVX512)
})

// foldHeads folds the query heads of each KV head, if the call has no feature that may differ between
// heads. The decision depends on neither lengths nor the batch, so a sequence has the same bits in any
// batch.
func (pl *plan) foldHeads() {
	if p := &pl.p; p.Score == (flashkit.Score{}) && !p.Carry && !p.KeyMass {
		pl.fold = p.Heads / p.KVHeads
	}
}

// pairColumns sets dst, [pairWords][lanes], to pairs of columns of n rows of t. Lanes from n on,
// and columns beyond the dim, are 0. buf is scratch of the size of dst.
func pairColumns(dst, buf []uint32, t *flashkit.Tensor, b, h, from, n int) {
	rows, step := tileRows(t, b, h, from, n, halves(buf))
	transposeColumns(dst, pairLanes, rows, step, pairWords(t.Shape()[3]), pairLanes)
}

// foldedColumns does the work of pairColumns for rows [from, from+n) of the folded heads of s.
func foldedColumns(dst, buf []uint32, t *flashkit.Tensor, s *seqTile, from, n int) {
	rows, dim, words := halves(buf), t.Shape()[3], pairWords(t.Shape()[3])
	clear(rows[:2*words*pairLanes])
	for i := range n {
		h, row := s.place(from + i)
		copy(rows[i*2*words:][:dim], t.Uint16s()[t.Offset(s.QBatch, h, row):])
	}
	transposeColumns(dst, pairLanes, rows, 2*words, words, pairLanes)
}

// transposeColumns sets dst[c][r] to the pair rows[r][2c], rows[r][2c+1] for each index c below
// words and each of n rows. Rows are step elements apart. transposeColumns rounds words and n up to
// multiples of 16, and reads the additional elements, too.
func transposeColumns(dst []uint32, dstStep int, rows []uint16, step, words, n int) {
	for c := 0; c < words; c += 16 {
		for r := 0; r < n; r += 16 {
			transposePairsAVX512BF16(&dst[c*dstStep+r], dstStep, &rows[r*step+2*c], step)
		}
	}
}

// pairRows sets dst, [n/2][dim], to pairs of n rows of t. An odd last row is paired with 0.
func pairRows(dst []uint32, t *flashkit.Tensor, b, h, from, n int) {
	rowsOf(t, b, h, from, n).pair(dst)
}

// pair does the work of pairRows for the rows of x.
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

// tileRows returns n rows of t from row r on. Rows and dim are padded with 0 to multiples of
// tileStep. tileRows copies the rows to buf only if they need padding.
func tileRows(t *flashkit.Tensor, b, h, r, n int, buf []uint16) (rows []uint16, step int) {
	dim := t.Shape()[3]
	if dim%tileStep == 0 && n%tileStep == 0 {
		return t.Uint16s()[t.Offset(b, h, r):], rowStep(t)
	}
	step = upToTiles(dim)
	clear(buf[:upToTiles(n)*step])
	for i := range n {
		copy(buf[i*step:][:dim], t.Uint16s()[t.Offset(b, h, r+i):])
	}
	return buf, step
}
