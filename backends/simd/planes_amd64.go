//go:build !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/half"
)

// This file is shared by the float32 kernels on AMX. They split a float32 into the sum of three
// bf16. An operand of a product is three planes: plane i holds the i-th bf16 of each element.
//
// An outlier is NaN, infinite, or so large that a partial product could overflow though the sum
// does not. An outlier is stored as 0. Its products are added separately, in float32, for the rows
// that see it.

const (
	planes   = 3
	planePad = 16 // words between planes, so that planes do not share cache lines
)

// planeOf returns the distance in words from a plane of n words to the next plane.
func planeOf(n int) int { return n + planePad }

// planeWords returns the number of words of an operand with the given number of rows of dim
// elements: three planes, each with one bf16 per element.
func planeWords(rows, dim int) int { return planes * planeOf(rows*pairWords(dim)) }

func fitsAMXF32(p flashkit.Problem) string {
	if reason := amxbf16().refuses(p); reason != "" {
		return reason
	}
	if p.DType == flashkit.BFloat16 {
		return "supports f32 and f16 only"
	}
	return ""
}

func isOutlier(x float32) bool { return !(float32(math.Abs(float64(x))) < 0x1p58) }

// tensorRows is n rows of a head of a tensor.
type tensorRows struct {
	t        *flashkit.Tensor
	b, h, at int
	n        int
	outliers bool           // some elements may be outliers
	pages    *flashkit.Call // the call, if the rows are keys of sequence b in pages; else nil
}

// run returns the offset of row r, and the number of rows from r on that follow one another at a
// constant distance in memory.
func (x *tensorRows) run(r int) (at, n int) {
	if x.pages == nil {
		return x.t.Offset(x.b, x.h, x.at+r), x.n - r
	}
	at, n = x.pages.KeyRun(x.t, x.b, x.h, x.at+r)
	return at, min(n, x.n-r)
}

func (x tensorRows) part(from, n int) tensorRows {
	x.at, x.n = x.at+from, n
	return x
}

func (x *tensorRows) element(r, c int) float32 {
	var y [1]float32
	at, _ := x.run(r)
	load(y[:], x.t, at+c)
	return y[0]
}

// eachOutlier calls f(r, c, y) for each outlier y of x, in row r and column c. row is scratch for
// one row.
func (x *tensorRows) eachOutlier(row []float32, f func(r, c int, y float32)) {
	if !x.outliers {
		return
	}
	row = row[:x.t.Shape()[3]]
	for r := range x.n {
		at, _ := x.run(r)
		load(row, x.t, at)
		for c, y := range row {
			if isOutlier(y) {
				f(r, c, y)
			}
		}
	}
}

// addOutlierDots completes s[r][i], the dot product of row r of a and row i of b. It adds the
// products in which at least one factor is an outlier. The rows of b are in the lanes. row is
// scratch for one row.
func addOutlierDots(s []float32, a, b *tensorRows, row []float32) {
	a.eachOutlier(row, func(r, c int, y float32) {
		for i := range b.n {
			s[r*pairLanes+i] += y * b.element(i, c)
		}
	})
	b.eachOutlier(row, func(i, c int, y float32) {
		for r := range a.n {
			if z := a.element(r, c); !isOutlier(z) {
				s[r*pairLanes+i] += y * z
			}
		}
	})
}

// addOutlierSums adds to sum[c][i] the outliers in column c of a, each times its row's weight for
// lane i. The shape of weights is [planes][n/2][lanes], and its elements are pairs of rows. Row r
// adds to lane i only if bit i of masks[r] is set. row is scratch for one row.
func addOutlierSums(sum []float32, a *tensorRows, weights []uint32, plane int, masks []uint32, row []float32) {
	w := halves(weights)
	a.eachOutlier(row, func(r, c int, y float32) {
		for i := range pairLanes {
			if masks[r]>>i&1 != 0 {
				sum[c*pairLanes+i] += planeSum(w, 2*plane, 2*(r/2*pairLanes+i)+r%2) * y
			}
		}
	})
}

// planeSum returns the float32 whose three bf16 are at index at of the planes of x.
func planeSum(x []uint16, plane, at int) float32 {
	return half.FromBF16(x[at]) + half.FromBF16(x[plane+at]) + half.FromBF16(x[2*plane+at])
}

// planeRows is rows of a tensor. Each element is split into three bf16, and plane i of the slice
// rows holds the i-th bf16 of each element.
type planeRows struct {
	tensorRows
	size int // capacity in rows, a multiple of tileStep
	step int
	rows []uint16 // [planes][size][step]
}

func newPlaneRows(ws *pool.Arena, dim, size int) planeRows {
	return planeRows{size: size, step: upToTiles(dim), rows: halves(takeWords(ws, planeWords(size, dim)))}
}

// plane returns the distance between planes, in words.
func (x *planeRows) plane() int { return planeOf(x.size * x.step / 2) }

// load copies n rows of t, from row r on, and splits each element into three bf16. It pads rows and
// dim with 0 to multiples of tileStep. row is scratch for one row.
func (x *planeRows) load(t *flashkit.Tensor, b, h, r, n int, row []float32) {
	x.split(tensorRows{t: t, b: b, h: h, at: r, n: n}, row)
}

// loadKeys does the work of load for n keys of a sequence from key k on. The keys may be in pages.
func (x *planeRows) loadKeys(j *job, t *flashkit.Tensor, s *seqTile, k, n int, row []float32) {
	if j.p.Page == 0 {
		x.load(t, s.KVBatch, s.g, s.K0+k, n, row)
		return
	}
	x.split(tensorRows{t: t, b: s.b, h: s.g, at: k, n: n, pages: j.call}, row)
}

func (x *planeRows) split(rows tensorRows, row []float32) {
	x.tensorRows = rows
	t, dim := x.t, x.t.Shape()[3]
	if dim != x.step || x.n%tileStep != 0 {
		clear(x.rows)
	}
	for i := 0; i < x.n; {
		at, n := x.run(i)
		if t.DType() == flashkit.Float32 {
			if !splitRowsAMXBF16(&x.rows[i*x.step], x.step, 4*x.plane(), &t.Float32s()[at], rowStep(t), dim, n) {
				x.outliers = true
			}
			i += n
			continue
		}
		avx512Lanes.load(row[:dim], t, at)
		if !splitRowsAMXBF16(&x.rows[i*x.step], x.step, 4*x.plane(), &row[0], dim, dim, 1) {
			x.outliers = true
		}
		i++
	}
}

// toLanes sets dst, [planes][n/32][step/2][lanes], to pairs of columns of x, one row per lane.
// plane is the distance between planes of dst, in words.
func (x *planeRows) toLanes(dst []uint32, plane int) {
	for i := range planes {
		for r := 0; r < x.n; r += pairLanes {
			transposeColumns(dst[i*plane+r*x.step/2:], pairLanes, x.rows[2*i*x.plane()+r*x.step:], x.step, x.step/2, pairLanes)
		}
	}
}

// toPairs sets dst, [planes][n/2][step], to pairs of rows of x. plane is the distance between
// planes of dst, in words.
func (x *planeRows) toPairs(dst []uint32, plane int) {
	for i := range planes {
		pairRowsAVX512BF16(&dst[i*plane], &x.rows[2*i*x.plane()], x.step, x.step, upToTiles(x.n)/2)
	}
}

// toColumns sets dst, [planes][step][size/2], to the transpose of pairs of rows of x. buf is
// scratch for one plane.
func (x *planeRows) toColumns(dst, buf []uint32) {
	for i := range planes {
		pairRowsAVX512BF16(&buf[0], &x.rows[2*i*x.plane()], x.step, x.step, upToTiles(x.n)/2)
		transposeColumns(dst[i*x.plane():], x.size/2, halves(buf), 2*x.step, x.step, upToTiles(x.n)/2)
	}
}
