//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"slices"
	"time"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// decode_amxbf16 computes what decode_avx512 computes, in the same chunks, with AMX. Its
// products take 16 query rows at the price of one, so it is for groups of many heads.
//
//	for each block of keys:
//		S = K Qᵀ                            K as it lies, Q in pairs; transposed to [rows][keys]
//		P = exp(S - max)                    in float32, as decode_avx512 has it
//		O += P V                            rows of P in two planes of bf16, pairs of keys of V
//
// The two planes hold 16 bits of P, so that rounding it is not what an error comes from.
// What a product makes of NaN and infinities is not theirs alone, as a plane may be 0: what
// a block adds to a row is taken once more, by the vectors of decode_avx512, where it is not finite.
func (b *Backend) decodeAMXBF16(ctx context.Context, c *flashkit.Call) error {
	return b.decode(ctx, c, decodeAMXBF16Work(&c.Problem), decodeAMXBF16Chunk, decodeAMXBF16Merge)
}

var amxDecode = decodeISA{
	laneISA: &avx512Lanes, tails: true,
	pace:    pace{start: 330, flop: .001, pair: .72, widen: .091},
	attend:  avx512Decode.attend,
	weights: decodeWeightsAVX512,
}

const (
	tileQueries  = 16                // query rows of a product
	planeQueries = tileQueries / 2   // of one with P, in two planes
	weightStep   = decodeBlock + 32  // elements from one row of P to the next
	weightRows   = 2*tileQueries + 8 // of P: two tiles, and a third plane of the second one, of no use
)

func fitsDecodeAMXBF16(p flashkit.Problem) string {
	if reason := fitsAMXBF16(p); reason != "" {
		return reason
	}
	return fitsDecode(amxbf16(), p)
}

func decodeAMXBF16Cost(p flashkit.Problem) time.Duration {
	f := decodeAMXBF16Times(p)
	return cost(f[:]...)
}

// decodeAMXBF16Times predicts the time of reading the keys and that of the arithmetic,
// which hardly overlap.
func decodeAMXBF16Times(p flashkit.Problem) [2]timedPhase {
	const chunk = 1000 // to begin and end one
	d, c := planDecode(&p), &amxDecode.pace
	keys, lanes := float64(d.heads)*float64(d.last-d.first), float64(ceilDiv(d.rows, tileQueries)*tileQueries)
	return d.times(&p, c, float64(d.heads*d.chunks)*chunk+
		keys*(float64(p.Dim+p.VDim)*(c.widen+2*lanes*c.flop)+float64(d.rows)*c.pair))
}

func decodeAMXBF16Merge(j *job, ws *arena, item int) { amxDecode.merge(j, ws, item) }

// decodeAMXBF16Work returns the chunks and the rows of all KV heads, and what each needs.
func decodeAMXBF16Work(p *flashkit.Problem) [2]phase {
	d := planDecode(p)
	words, vwords, rows := pairWords(p.Dim), pairWords(p.VDim), max(1, ceilDiv(d.rows, tileQueries))*tileQueries
	return d.work(rows*(words+decodeStep) + pad(d.rows) + decodeBlock*(tileQueries+words+vwords) + 4*tileQueries*tileQueries +
		weightRows*weightStep/2 + 4*tileQueries*vwords + decodeBlock*p.VDim + d.oStep + tileQueries*words)
}

// A tileChunk is the state of a chunk of the keys of a KV head.
type tileChunk struct {
	decodePlan
	b, g  int
	q     []uint32  // [rows/16][dim/2][16]
	s     []float32 // [rows][decodeStep]
	m, l  []float32 // [rows]
	o     []float32 // [rows][oStep]
	keys  []float32 // scores, [decodeBlock][16]
	k, v  []uint16  // a block's rows, if they cannot be used where they lie
	pairs []uint32  // [2][16][32], of V
	p     []uint16  // [weightRows][weightStep], of each 8 rows one plane after the other
	sum   []float32 // [2*tileQueries][vdim], likewise
	wild  []float32 // values of a block, widened, where they may not be finite
	idle  []float32 // [oStep]
}

func decodeAMXBF16Chunk(j *job, ws *arena, item int) {
	p := &j.p
	d := planDecode(p)
	d.block = decodeBlock // nothing of a block waits for the next one
	x := newTileChunk(j, ws, &d, item)
	from, to := d.keysOf(item)
	for from < to && !j.canceled() {
		block := d.cut(p, from, to)
		from += block.n
		if block.rows > 0 {
			x.score(j, block)
			amxDecode.weigh(x.s[block.row*decodeStep:], block.rows, block.n, &x.m[block.row], &x.l[block.row], j.base2, &x.o[block.row*d.oStep], d.oStep)
			x.addValues(j, block)
		}
	}
	d.end(x.o, x.l)
}

// newTileChunk packs the query rows of an item.
func newTileChunk(j *job, ws *arena, d *decodePlan, item int) tileChunk {
	p, q, head := &j.p, &j.args.Q, item/d.chunks
	words, vwords, padded := pairWords(p.Dim), pairWords(p.VDim), max(1, ceilDiv(d.rows, tileQueries))*tileQueries
	x := tileChunk{
		decodePlan: *d, b: head / p.KVHeads, g: head % p.KVHeads,
		q: takeWords(ws, padded*words), s: ws.take(padded * decodeStep), l: ws.take(pad(d.rows))[:d.rows],
		keys: ws.take(decodeBlock * tileQueries), k: halves(takeWords(ws, decodeBlock*words)), v: halves(takeWords(ws, decodeBlock*vwords)),
		pairs: takeWords(ws, 4*tileQueries*tileQueries), p: halves(takeWords(ws, weightRows*weightStep/2)),
		sum: ws.take(4 * tileQueries * vwords), wild: ws.take(decodeBlock * p.VDim), idle: ws.take(d.oStep),
	}
	x.m, x.o = d.begin(j, item, x.l)
	rows := halves(takeWords(ws, tileQueries*words))
	for at := 0; at < d.rows; at += tileQueries {
		clear(rows)
		for r := at; r < min(at+tileQueries, d.rows); r++ {
			h, i := d.queryOf(x.g, r)
			copy(rows[(r-at)*2*words:][:p.Dim], q.Uint16s()[q.Offset(x.b, h, i):])
		}
		transposeColumns(x.q[at*words:], tileQueries, rows, 2*words, words, tileQueries)
	}
	return x
}

// score computes the scores of a block, [rows][decodeStep].
func (x *tileChunk) score(j *job, block seenKeys) {
	words := pairWords(j.p.Dim)
	k, step := tileRows(&j.args.K, x.b, x.g, block.from, block.n, x.k)
	for at := block.row &^ (tileQueries - 1); at < block.row+block.rows; at += tileQueries {
		aheadScoresAMXBF16(&x.keys[0], &k[0], step, &x.q[at*words], words, upToTiles(block.n), aheadOf(&j.args.K, block.n, step))
		transposeAVX512(&x.s[at*decodeStep], decodeStep, 16, &x.keys[0], tileQueries, 16*tileQueries, &ones[0], ceilDiv(block.n, 16))
	}
}

// aheadOf returns how many bytes after n rows of t, step elements apart, those of the next
// block are, or 0 where they do not lie side by side.
func aheadOf(t *flashkit.Tensor, n, step int) int {
	if dim := t.Shape()[3]; rowStep(t) != dim || step != dim {
		return 0
	}
	return 2 * n * step
}

// addValues adds to O what the weights make of the values of a block.
func (x *tileChunk) addValues(j *job, block seenKeys) {
	vdim, wide, keys := j.p.VDim, upToTiles(j.p.VDim), upToTiles(block.n)
	v, step := tileRows(&j.args.V, x.b, x.g, block.from, block.n, x.v)
	for from := block.row; from < block.row+block.rows; from += tileQueries {
		n := min(tileQueries, block.row+block.rows-from)
		var tame [2]bool
		for i, at := 0, 0; at < n; i, at = i+1, at+planeQueries {
			tame[i] = x.splitWeights(from+at, min(planeQueries, n-at), block.n, x.p[2*at*weightStep:])
		}
		blockValuesAMXBF16(&x.sum[0], wide, &x.p[0], weightStep, ceilDiv(n, planeQueries)*tileQueries, &v[0], step, &x.pairs[0], keys, wide, aheadOf(&j.args.V, block.n, step))
		for i, at := 0, 0; at < n; i, at = i+1, at+planeQueries {
			sum, rows := x.sum[2*at*wide:], min(planeQueries, n-at)
			if !tame[i] || !x.addSums(from+at, rows, sum, vdim) {
				x.addWild(j, block, from+at, rows, sum)
			}
		}
	}
}

// splitWeights sets p to two planes of the weights of n rows, from a given one on, with 0
// beyond the last key and in place of NaN. It reports whether there is none.
func (x *tileChunk) splitWeights(from, n, keys int, p []uint16) bool {
	s := x.s[from*decodeStep:]
	for r := 0; r < n && pad(keys) < upToTiles(keys); r++ {
		clear(s[r*decodeStep+pad(keys):][:16])
	}
	return splitRowsAMXBF16(&p[0], weightStep, 2*planeQueries*weightStep, &s[0], decodeStep, upToTiles(keys), n)
}

// addSums adds sums of two planes to n rows of O, from a given one on, and reports true, if
// all are finite.
func (x *tileChunk) addSums(from, n int, sum []float32, vdim int) bool {
	wide := upToTiles(vdim)
	return addPlanesAMXBF16(&x.o[from*x.oStep], x.oStep, &sum[0], wide, &sum[planeQueries*wide], n, vdim)
}

// addWild does so row by row, and takes those whose weights or sums are not finite once
// more, by vectors.
func (x *tileChunk) addWild(j *job, block seenKeys, from, n int, sum []float32) {
	vdim := j.p.VDim
	avx512Lanes.loadRows(x.wild, vdim, &j.args.V, x.b, x.g, block.from, block.n)
	for r := from; r < from+n; r++ {
		weights := x.s[r*decodeStep:][:block.n]
		nan := slices.ContainsFunc(weights, func(w float32) bool { return w != w })
		if nan || !x.addSums(r, 1, sum[(r-from)*upToTiles(vdim):], vdim) {
			attendF32AVX512(nil, nil, 0, 0, nil, 0, 0, 0, 0,
				&x.o[r*x.oStep], x.oStep, &x.idle[0], &weights[0], (*byte)(unsafe.Pointer(&x.wild[0])), 4*vdim, 0, vdim, 1, block.n)
		}
	}
}
