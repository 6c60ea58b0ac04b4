//go:build amd64 && !purego

package simd

import (
	"slices"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// decode_amxbf16 is decode_avx512 with AMX products, in the same chunks. A product of 16 query rows
// takes the same time as a product of one row, which suits large groups of query heads.
//
//	for each block of keys:
//		S = K Qᵀ                            K is read in place, Q is packed in pairs; S is transposed to [rows][keys]
//		P = exp(S - max)                    in float32, by the routine of decode_avx512
//		O += P V                            P is split into two planes of bf16, V is packed in pairs of keys
//
// A weight of P is the sum of two bf16, one in each plane. The two bf16 together hold 16
// significant bits, so the rounding of P does not dominate the error. But a plane may be 0 where
// the weight is not, and 0 times infinity is NaN. So if the sum of a block is not finite in some
// row, attend of decode_avx512 recomputes this row.

var amxDecode = decodeRoutines{
	laneRoutines: &avx512Lanes, tails: true,
	pace:    pace{start: 139, flop: .001, pair: .41, pack: .194, widen: .0745},
	attend:  avx512Decode.attend, // for non-finite values
	weights: decodeWeightsAVX512,
}

const (
	tileQueries  = 16                // query rows of a product for S
	planeQueries = tileQueries / 2   // query rows in 16 rows of P: each query row has one row in each of the two planes
	weightStep   = decodeBlock + 32  // elements from one row of P to the next
	weightRows   = 2*tileQueries + 8 // rows of P: two tiles, and a third plane that splitRowsAMXBF16 writes, too
)

func fitsDecodeAMXBF16(p flashkit.Problem) string {
	if reason := fitsAMXBF16(p); reason != "" {
		return reason
	}
	return fitsDecode(amxbf16(), p)
}

// decodeAMXBF16Times adds the time of reading the keys and the time of the arithmetic, because
// reads and arithmetic hardly overlap.
func decodeAMXBF16Times(pl *plan) [3]timedPhase {
	const (
		page  = 300  // nanoseconds to begin copying the rows of a page of K and of V
		item  = 1650 // nanoseconds to begin and end an item
		block = 570  // nanoseconds to pack the tiles of a block, beyond its rows and keys
	)
	t, c := &amxDecode.pace, pl.call
	dims, pair, pages := float64(upToTiles(c.Dim)+upToTiles(c.VDim)), t.pair+decodePairTime(c), 0.0
	if c.Page > 0 {
		pages = page / float64(c.Page)
	}
	return decodeTimes(pl, t, item, block, func(n int) float64 {
		lanes := float64(ceilDiv(n, tileQueries) * tileQueries)
		return dims*(t.widen+2*lanes*t.flop) + float64(n)*pair + pages
	})
}

func decodeAMXBF16Plan(pl *plan) { pl.planDecode(1, decodeAMXBF16Floats(pl.call)) }

func decodeAMXBF16Floats(c *flashkit.Call) int {
	rows := c.Heads / c.KVHeads * c.QLen
	_, oStep := decodeSteps(&c.Problem)
	words, vwords, padded := pairWords(c.Dim), pairWords(c.VDim), max(1, ceilDiv(rows, tileQueries))*tileQueries
	return padded*(words+decodeStep) + decodeBlock*(tileQueries+words+vwords) + 4*tileQueries*tileQueries +
		weightRows*weightStep/2 + 4*tileQueries*vwords + c.VDim + decodePad*oStep + tileQueries*words +
		sumFloats(rows, oStep) + scoreFloats(c, rows)
}

type tileItem struct {
	decodeSums
	decodeScores
	q       []uint32  // Q in pairs, [rows/16][dim/2][16]
	s       []float32 // S, then P, [rows][decodeStep]
	keys    []float32 // S of 16 query rows, [decodeBlock][16]
	k, v    []uint16  // copies of the block's rows of K and V, if they cannot be read in place
	pairs   []uint32  // scratch for pairs of V, [2][16][32]
	p       []uint16  // P in planes, [weightRows][weightStep]: the high plane of 8 query rows, then their low plane
	sum     []float32 // products of V with the rows of p, [2*tileQueries][vdim]
	vRow    []float32 // a row of V as float32
	scratch []float32 // rows beyond the last that routines may write, [decodePad][oStep]
}

func decodeAMXBF16Chunks(j *job, ws *pool.Arena, item int) {
	var x tileItem
	x.setItem(j, ws, item)
	isa := avx512Decode.laneRoutines
	from, to := x.first+x.from*x.chunk, min(x.last, x.first+x.to*x.chunk)
	for from < to && !j.Canceled() {
		c := (from - x.first) / x.chunk
		block := x.cut(from, min(to, x.first+(c+1)*x.chunk))
		from += block.n
		if block.rows == 0 || !x.mask(isa, j, &x.itemOfKeys, &block) {
			continue
		}
		x.reach(isa, j, c)
		block.s = x.s[block.row*decodeStep:]
		x.score(j, block)
		x.adjust(isa, j, &x.itemOfKeys, &block)
		amxDecode.weigh(block.s, block.rows, block.n, &x.m[block.row], &x.l[block.row], j.base2, &x.o[block.row*x.oStep], x.oStep)
		x.drop(isa, j, &x.itemOfKeys, &block)
		x.addValues(j, block)
	}
	amxDecode.endItem(j, &x.decodeSums, x.scratch)
}

func (x *tileItem) setItem(j *job, ws *pool.Arena, item int) {
	p, q := &j.p, &j.args.Q
	x.decodeSums.setItem(j, ws, item, 0)
	x.block = decodeBlock // even if all keys fit in one block, since blocks do not overlap
	words, vwords, padded := pairWords(p.Dim), pairWords(p.VDim), max(1, ceilDiv(x.rows, tileQueries))*tileQueries
	x.q, x.s = takeWords(ws, padded*words), ws.Take(padded*decodeStep)
	x.keys, x.k, x.v = ws.Take(decodeBlock*tileQueries), halves(takeWords(ws, decodeBlock*words)), halves(takeWords(ws, decodeBlock*vwords))
	x.pairs, x.p = takeWords(ws, 4*tileQueries*tileQueries), halves(takeWords(ws, weightRows*weightStep/2))
	x.sum, x.vRow, x.scratch = ws.Take(4*tileQueries*vwords), ws.Take(p.VDim), ws.Take(decodePad*x.oStep)
	x.setScores(&avx512Lanes, j, ws, &x.itemOfKeys)
	rows := halves(takeWords(ws, tileQueries*words))
	for at := 0; at < x.rows; at += tileQueries {
		clear(rows)
		for r := at; r < min(at+tileQueries, x.rows); r++ {
			h, i := x.queryOf(x.g, r)
			copy(rows[(r-at)*2*words:][:p.Dim], q.Uint16s()[q.Offset(x.QBatch, h, x.Q0+i):])
		}
		transposeColumns(x.q[at*words:], tileQueries, rows, 2*words, words, tileQueries)
	}
}

// score sets x.s, [rows][decodeStep], to the dot products of the block's query rows and keys.
func (x *tileItem) score(j *job, block seenKeys) {
	words := pairWords(j.p.Dim)
	k, step, ahead := x.blockRows(j, &j.args.K, block, x.k)
	for at := block.row &^ (tileQueries - 1); at < block.row+block.rows; at += tileQueries {
		aheadScoresAMXBF16(&x.keys[0], &k[0], step, &x.q[at*words], words, upToTiles(block.n), ahead)
		transposeAVX512(&x.s[at*decodeStep], decodeStep, 16, &x.keys[0], tileQueries, 16*tileQueries, &ones[0], ceilDiv(block.n, 16))
	}
}

// blockRows returns the block's rows of t, which are step elements apart. t is K or V. ahead is the
// distance in bytes to the next block's rows, or 0 if the rows are not contiguous. blockRows copies
// the rows to buf if they are in pages or need padding.
func (x *tileItem) blockRows(j *job, t *flashkit.Tensor, block seenKeys, buf []uint16) (rows []uint16, step, ahead int) {
	dim := t.Shape()[3]
	if j.p.Page == 0 {
		rows, step = tileRows(t, x.KVBatch, x.g, x.K0+block.from, block.n, buf)
		if rowStep(t) == dim && step == dim {
			ahead = 2 * block.n * step
		}
		return rows, step, ahead
	}
	step = upToTiles(dim)
	clear(buf[:upToTiles(block.n)*step])
	for i := range block.n {
		batch, row := x.place(j, block.from+i)
		copy(buf[i*step:][:dim], t.Uint16s()[t.Offset(batch, x.g, row):])
	}
	return buf, step, 0
}

func (x *tileItem) addValues(j *job, block seenKeys) {
	vdim, wide, keys := j.p.VDim, upToTiles(j.p.VDim), upToTiles(block.n)
	v, step, ahead := x.blockRows(j, &j.args.V, block, x.v)
	for from := block.row; from < block.row+block.rows; from += tileQueries {
		n := min(tileQueries, block.row+block.rows-from)
		var noNaN, added [2]bool
		for i, at := 0, 0; at < n; i, at = i+1, at+planeQueries {
			noNaN[i] = x.splitWeights(from+at, min(planeQueries, n-at), block.n, x.p[2*at*weightStep:])
		}
		products := func(v []uint16, step, ahead int) {
			blockValuesAMXBF16(&x.sum[0], wide, &x.p[0], weightStep, ceilDiv(n, planeQueries)*tileQueries, &v[0], step, &x.pairs[0], keys, wide, ahead)
		}
		products(v, step, ahead)
		for i, at := 0, 0; at < n; i, at = i+1, at+planeQueries {
			added[i] = noNaN[i] && x.addSums(from+at, min(planeQueries, n-at), x.sum[2*at*wide:], vdim)
		}
		if added[0] && (added[1] || n <= planeQueries) {
			continue
		}
		products(x.finiteRows(v, step, wide, block.n), wide, 0)
		for i, at := 0, 0; at < n; i, at = i+1, at+planeQueries {
			if !added[i] {
				x.addNonFinite(j, block, from+at, min(planeQueries, n-at), x.sum[2*at*wide:])
			}
		}
		v, step, ahead = x.blockRows(j, &j.args.V, block, x.v) // finiteRows overwrote x.v
	}
}

// finiteRows returns a copy of n rows of V in x.v, with 0 in place of NaN and infinity.
func (x *tileItem) finiteRows(v []uint16, step, wide, n int) []uint16 {
	if &v[0] != &x.v[0] {
		clear(x.v[:upToTiles(n)*wide])
		for i := range n {
			copy(x.v[i*wide:][:wide], v[i*step:])
		}
	}
	for i, e := range x.v[:n*wide] {
		if isNonFinite(e) {
			x.v[i] = 0
		}
	}
	return x.v
}

// splitWeights sets p to two planes of the weights of rows [from, from+n). It stores 0 for NaN, and
// for the padding after the last key. It reports whether no weight is NaN.
func (x *tileItem) splitWeights(from, n, keys int, p []uint16) bool {
	s := x.s[from*decodeStep:]
	for r := 0; r < n && pad(keys) < upToTiles(keys); r++ {
		clear(s[r*decodeStep+pad(keys):][:16])
	}
	return splitRowsAMXBF16(&p[0], weightStep, 2*planeQueries*weightStep, &s[0], decodeStep, upToTiles(keys), n)
}

// addSums adds the products of both planes to rows [from, from+n) of O. The slice sum holds these
// products. If a result is not finite, addSums leaves O unchanged and returns false.
func (x *tileItem) addSums(from, n int, sum []float32, vdim int) bool {
	wide := upToTiles(vdim)
	return addPlanesAMXBF16(&x.o[from*x.oStep], x.oStep, &sum[0], wide, &sum[planeQueries*wide], n, vdim)
}

// addNonFinite does the work of addSums, one row at a time. The slice sum holds the products without the
// values that are not finite, so a row that sees none of these has the bits of any values there. addKey
// adds these values to the rows that see them. If a row has a NaN weight or a sum that is not finite,
// addKey adds each key that the row sees.
func (x *tileItem) addNonFinite(j *job, block seenKeys, from, n int, sum []float32) {
	vdim, v := j.p.VDim, &j.args.V
	for r := from; r < from+n; r++ {
		weights := x.s[r*decodeStep:][:block.n]
		nan := slices.ContainsFunc(weights, func(w float32) bool { return w != w })
		added := !nan && x.addSums(r, 1, sum[(r-from)*upToTiles(vdim):], vdim)
		for key := range weights {
			if !x.sees(&block, r-block.row, key) {
				continue
			}
			batch, row := x.place(j, block.from+key)
			at := v.Offset(batch, x.g, row)
			values := v.Uint16s()[at:][:vdim]
			if added && !slices.ContainsFunc(values, isNonFinite) {
				continue
			}
			avx512Lanes.load(x.vRow, v, at)
			for c, e := range values {
				if added && !isNonFinite(e) {
					x.vRow[c] = 0
				}
			}
			amxDecode.addKey(flashkit.Float32, x.o[r*x.oStep:][:x.oStep], x.scratch, &weights[key], unsafe.Pointer(&x.vRow[0]), vdim)
		}
	}
}
