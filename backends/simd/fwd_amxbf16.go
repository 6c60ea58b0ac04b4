//go:build amd64 && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// fwd_amxbf16 is fwd_avx512bf16 with AMX, and has the same tiles of query rows. An AMX instruction
// multiplies 16 rows of 32 bf16 by 16 columns of 32 bf16, and adds the products to 16 x 16 float32.
//
//	S = K Qᵀ          K is read in place, Q is [dim/2][lanes] of pairs
//	P = exp(S - max)  in float32, then rounded to pairs of keys, [keys/2][lanes]
//	Oᵀ += Vᵀ P        V is transposed for each item, [vdim][keys/2] of pairs
//
// A pair is two bf16 in one 32-bit word. At the edges of the band of visible keys, keys that a row
// does not see get weight 0.

const tileItemRows = 1024 // most query rows of an item: more than itemRows, so that more rows share the packing of K and V

func fwdAMXBF16Plan(pl *plan) {
	pl.foldHeads()
	pl.planTiles()
	p := &pl.p
	vdim, words := upToTiles(p.VDim), pairWords(p.Dim)
	perTile := pairLanes*words + pl.sumFloats(pairLanes, vdim, tileBlock)
	shared := tileBlock*(pairLanes+1+words) + tileBlock/2*pairLanes + packedFloats(p.VDim, tileBlock) + pairLanes*(words+vdim+3)
	pl.setItems(perTile, shared+pl.featureFloats(pairLanes, tileBlock)+pl.pageFloats(tileBlock, p.VDim))
}

func fwdAMXBF16Times(pl *plan) [3]timedPhase {
	return fwdTilePace.forward(pl, pairLanes, tileStep, pl.rows)
}

type tileScratch struct {
	laneScratch
	laneRange
	k      []uint16   // K of the block, in place or in kBuf
	kBuf   []uint16   // copies of rows of K that need padding or are in pages
	v      packedRows // V of the block
	vPages []uint16   // copies of V's rows from pages
	pPairs []uint32   // P in pairs of keys, [half of the keys of a block][lanes]
	buf    []uint32   // scratch for rows of Q

	biasPairs []uint32 // 16-bit bias in pairs of keys, [half of the keys of a block][lanes]
	biasRows  []uint32 // copies of bias rows, if needed
}

func fwdAMXBF16Item(j *job, ws *pool.Arena, item int) {
	p := &j.p
	at := j.laneRange(item)
	vdim, words := upToTiles(p.VDim), pairWords(p.Dim)
	x := tileScratch{
		laneScratch: laneScratch{
			s: ws.Take(tileBlock * pairLanes), masks: takeWords(ws, tileBlock),
			rows: ws.Take(pairLanes * vdim),
			top:  ws.Take(pairLanes), scratchMax: ws.Take(pairLanes), factors: ws.Take(pairLanes),
		},
		laneRange: at,
		pPairs:    takeWords(ws, tileBlock/2*pairLanes),
		buf:       takeWords(ws, pairLanes*words),
		kBuf:      halves(takeWords(ws, tileBlock*words)),
		v:         newPackedRows(ws, p.VDim, tileBlock),
		vPages:    j.newPage(ws, tileBlock, p.VDim),
	}
	x.setFeatures(j, ws, pairLanes, tileBlock, tileStep)
	x.mask.narrow(j, &x.laneRange, pairLanes)
	if p.Score.Bias && j.args.Bias.DType() != flashkit.Float32 {
		const pairs = tileBlock / 2 * pairLanes
		x.biasPairs, x.biasRows = asWords(x.biasBuf[:pairs]), asWords(x.biasBuf[pairs:])
	}
	if j.tilesPerItem == 1 {
		var one [1]pairTile
		x.compute(j, ws, one[:0])
		return
	}
	var tiles [tileItemRows / pairLanes]pairTile
	x.compute(j, ws, tiles[:0])
}

// compute computes the tiles of an item. tiles is an empty slice with capacity for all tiles of the
// item.
func (x *tileScratch) compute(j *job, ws *pool.Arena, tiles []pairTile) {
	for r := x.from; r < x.to; r += pairLanes {
		tiles = tiles[:len(tiles)+1]
		seq, from := x.tile(r)
		tiles[len(tiles)-1].begin(j, ws, &seq, from, min(pairLanes, x.to-r), upToTiles(j.p.VDim), tileBlock, x.buf)
	}
	j.blocksOf(x.laneRange, tileBlock, len(tiles), func(lo, hi int) { x.load(j, lo, hi) }, func(i int) {
		t := &tiles[i]
		avx512Lanes.flushRun(j, &t.laneTile, x.factors, x.lo)
		j.partsOf(&t.laneTile, &x.laneScratch, func(from, keys int, edge, hidden bool) { x.processKeys(j, t, from, keys, edge, hidden) })
	})
	for t := range tiles {
		avx512Lanes.finish(j, &tiles[t].laneTile, &x.laneScratch)
	}
	j.clearRows(&x.seqTile)
}

func (x *tileScratch) load(j *job, lo, hi int) {
	x.lo, x.hi = lo, hi
	if x.mask.hidesBlock(j, &avx512Lanes, &x.seqTile, lo, hi) {
		return
	}
	x.k, x.kStep = j.tileKeys(&j.args.K, &x.seqTile, lo, hi-lo, x.kBuf)
	x.v.pack(j.keysOf(&j.args.V, &x.seqTile, lo, hi-lo, x.vPages))
	x.v.transpose()
}

// processKeys adds the keys [from, from+keys) to the sums of tile t. If edge is true, the band may
// hide some of these keys from some row. If hidden is true, the mask may hide some.
func (x *tileScratch) processKeys(j *job, t *pairTile, from, keys int, edge, hidden bool) {
	at := from - x.lo
	if edge || x.adjusts || x.v.nonFinite || hidden && !x.mask.ofKeys {
		x.setMasks(&t.laneTile, from, keys, edge || x.v.nonFinite, hidden)
	}
	k, words := &x.k[at*x.kStep], pairWords(j.p.Dim)
	copy(x.top, t.m)
	switch {
	case edge || x.adjusts || hidden && !x.mask.ofKeys:
		x.shapedScores(j, t, from, keys, edge || hidden)
	case hidden:
		seen := &x.mask.seen[(from-x.mask.from)/maskGroup]
		seenScoresAMXBF16(&x.s[0], k, x.kStep, &t.qPairs[0], words, keys, &x.top[0], seen)
	default:
		scoresAMXBF16(&x.s[0], k, x.kStep, &t.qPairs[0], words, keys, &x.top[0])
	}
	hideLast(x.s, keys)
	pairs, filled := (keys+1)/2, upToTiles(keys)/2
	expScoresAMXBF16(&x.pPairs[0], &x.s[0], pairs, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	if x.drops {
		o := &j.args.Origin
		avx512Lanes.numberRows(j, &t.laneTile, &x.laneScratch)
		dropPairsAMXBF16(&x.pPairs[0], keys, o.Key+from, &x.numbers[0], uint32(o.Head+t.seq.h), uint32(o.Batch+t.seq.b), j.args.Seed, x.limit)
	}
	clear(x.pPairs[pairs*pairLanes : filled*pairLanes])
	addValuesAMXBF16(&t.o[0], &x.v.columns[at/2], x.v.step, &x.pPairs[0], filled, upToTiles(j.p.VDim), t.alpha(x.factors), &x.s[0])
	if x.v.nonFinite {
		x.v.addNonFinite(t.o, at, keys, x.pPairs, x.masks)
	}
}

// shapedScores computes the scores of keys [from, from+keys), with score features and masks. If
// there is a float32 bias, one routine stores the dot products, and endScores turns the dot
// products into scores. Otherwise one routine computes the adjusted scores.
func (x *tileScratch) shapedScores(j *job, t *pairTile, from, keys int, masked bool) {
	score, at, words := &j.p.Score, from-x.lo, pairWords(j.p.Dim)
	if score.Bias && j.args.Bias.DType() == flashkit.Float32 {
		top, _ := x.beginScores(&t.laneTile, keys, masked)
		scoresAMXBF16(&x.s[0], &x.k[at*x.kStep], x.kStep, &t.qPairs[0], words, keys, top)
		avx512Lanes.endScores(j, &t.laneTile, &x.laneScratch, from, 0, keys, masked)
		return
	}
	copy(x.top, t.m)
	var masks, bias *uint32
	var lanes *float32
	var slope float32
	if masked || keys%2 == 1 {
		x.maskLast(keys, masked)
		masks = &x.masks[0]
	}
	if score.ALiBi {
		slope, lanes = j.slope(&t.seq), &x.lanes[0]
	}
	if score.Bias {
		x.pairBias(j, &t.laneTile, from, keys)
		bias = &x.biasPairs[0]
	}
	shapedScoresAMXBF16(&x.s[0], &x.k[at*x.kStep], x.kStep, &t.qPairs[0], words, keys, &x.top[0], masks,
		float32(j.scale), score.Softcap, bias, lanes, slope, float32(from-t.from-t.seq.Diagonal))
}

// maskLast clears the mask of the padding key that follows an odd number of keys. If masked is
// false, it first sets the masks of all other keys to visible.
func (x *tileScratch) maskLast(keys int, masked bool) {
	if !masked {
		for i := range keys {
			x.masks[i] = ^uint32(0)
		}
	}
	if keys%2 == 1 {
		x.masks[keys] = 0
	}
}

// pairBias transposes the 16-bit bias of keys [from, from+keys) into x.biasPairs. A word of
// x.biasPairs holds the biases of two neighboring keys for one row.
func (x *tileScratch) pairBias(j *job, t *laneTile, from, keys int) {
	b, n := &j.args.Bias, upToTiles(keys)
	at, rows, step := j.biasOf(&t.seq, t.from, t.n, from)
	bias := b.Uint16s()[at:]
	if from+n > b.Shape()[3] || step != 0 && rows < pairLanes {
		bias = halves(x.biasRows)
		next := min(step, biasStep(tileBlock))
		for r := range rows {
			copy(bias[r*next:][:keys], b.Uint16s()[at+r*step:])
		}
		step = next
	}
	transposeColumns(x.biasPairs, pairLanes, bias, step, n/2, pairLanes)
	avx512Lanes.fetchBias(j, &t.seq, t.from, tileBlock, from, keys)
}

// hideLast sets the scores of the padding key, which follows an odd number of keys, to -Inf.
func hideLast(s []float32, keys int) {
	if keys%2 == 0 {
		return
	}
	last := s[keys*pairLanes:][:pairLanes]
	for i := range last {
		last[i] = float32(math.Inf(-1))
	}
}
