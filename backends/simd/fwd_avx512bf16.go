//go:build amd64 && !purego

package simd

import "github.com/flashkit-go/flashkit/backends/simd/internal/pool"

// fwd_avx512bf16 is fwd_avx512 with VDPBF16PS, and has the same tiles. In each lane, the
// instruction multiplies a pair of bf16 by another pair, element by element, and adds both products
// to a float32.
//
//	S = K Qᵀ          pairs of columns; K is read in place, Q is [dim/2][lanes]
//	P = exp(S - max)  in float32, then rounded to pairs of keys, [keys/2][lanes]
//	Oᵀ += Vᵀ P        pairs of keys; V is packed for each item, [keys/2][vdim]
//
// The instruction cannot skip one key of a pair. But at the edges of the band of visible keys, some
// rows see only one of the two keys. There P stays in float32, and the masked product of fwd_avx512
// adds P times widened rows of V to O. Keys that a mask hides get weight 0. Since 0 times NaN or
// infinity is NaN, such elements of V are packed as 0, and their products are added separately.

func fwdAVX512BF16Plan(pl *plan) {
	pl.foldHeads()
	avx512Lanes.planRows(pl, itemRows)
	p := &pl.p
	vdim, words, keys := pad(p.VDim), pairWords(p.Dim), avx512Lanes.keys
	pl.shared = pl.massFloats()
	perTile := pairLanes*words + pl.sumFloats(pairLanes, vdim, keys) + pl.massFloatsOfTile(pairLanes)
	shared := pl.massFloatsOfItem(pairLanes) + keys*(pairLanes+1+vdim) + keys/2*(pairLanes+vdim) + pairLanes*(words+vdim+3)
	pl.setItems(perTile, shared+pl.featureFloats(pairLanes, keys)+pl.pageFloats(keys, p.Dim)+pl.pageFloats(keys, p.VDim))
}

func fwdAVX512BF16Times(pl *plan) [3]timedPhase {
	pace := pairPace(fwdPairPace)
	return pace.forward(pl, pairLanes, 2, itemRows)
}

// pairTile is a laneTile whose Q is packed in pairs of bf16.
type pairTile struct {
	laneTile
	qPairs []uint32 // [dim/2][lanes]
}

type pairScratch struct {
	laneScratch
	laneRange
	k              halfRows   // K of the block, from key even on
	v              packedRows // V of the block, from key even on
	even           int        // number of the block's first key, rounded down to an even number
	kPages, vPages []uint16   // copies of rows of K and V from pages
	pPairs         []uint32   // [half of the keys of a block][lanes]
	buf            []uint32   // rows of Q
}

func fwdAVX512BF16Item(j *job, ws *pool.Arena, item int) {
	p := &j.p
	at := j.laneRange(item)
	vdim, keys := pad(p.VDim), avx512Lanes.keys
	x := pairScratch{
		laneScratch: laneScratch{
			s: ws.Take(keys * pairLanes), masks: takeWords(ws, keys),
			vBuf: ws.Take(keys * vdim), rows: ws.Take(pairLanes * vdim),
			top: ws.Take(pairLanes), scratchMax: ws.Take(pairLanes), factors: ws.Take(pairLanes),
		},
		laneRange: at,
		pPairs:    takeWords(ws, keys/2*pairLanes), v: packedRows{pairs: takeWords(ws, keys/2*vdim)},
		buf:    takeWords(ws, pairLanes*pairWords(p.Dim)),
		kPages: j.newPage(ws, keys, p.Dim), vPages: j.newPage(ws, keys, p.VDim),
	}
	x.setFeatures(j, ws, pairLanes, keys, 2)
	x.mask.narrow(j, &x.laneRange, pairLanes)
	if j.tilesPerItem == 1 {
		var one [1]pairTile
		x.compute(j, ws, one[:0])
		return
	}
	var tiles [maxTiles]pairTile
	x.compute(j, ws, tiles[:0])
}

func (x *pairScratch) compute(j *job, ws *pool.Arena, tiles []pairTile) {
	vdim, keys := pad(j.p.VDim), avx512Lanes.keys
	x.beginMass(j, ws, pairLanes, x.first, x.last)
	for r := x.from; r < x.to; r += pairLanes {
		tiles = tiles[:len(tiles)+1]
		seq, from := x.tile(r)
		tiles[len(tiles)-1].begin(j, ws, &seq, from, min(pairLanes, x.to-r), vdim, keys, x.buf)
		if x.mass.on {
			tiles[len(tiles)-1].beginMass(ws, pairLanes, x.mass.last-x.mass.first)
		}
	}
	for lo := x.first; lo < x.last; lo = x.hi {
		x.load(j, lo, avx512Lanes.blockEnd(&x.laneRange, lo))
		for t := range tiles {
			if j.Canceled() {
				return
			}
			t := &tiles[t]
			avx512Lanes.flushRun(j, &t.laneTile, x.factors, lo)
			avx512Lanes.eachPart(j, &t.laneTile, &x.laneScratch, 2, 2, func(from, keys int, edge, hidden bool) {
				x.processKeys(j, t, from, keys, edge, hidden)
			})
		}
	}
	for t := range tiles {
		avx512Lanes.finish(j, &tiles[t].laneTile, &x.laneScratch)
	}
	if x.mass.on {
		avx512Lanes.endMass(j, ws, &x.laneScratch, &x.seqTile)
	}
	j.clearRows(&x.seqTile)
}

// begin initializes the empty tile t for query rows [from, from+n) of s. It loads and packs Q, and
// allocates O as [vdim][lanes]. block is the number of keys of a block. buf is scratch for rows of
// Q.
func (t *pairTile) begin(j *job, ws *pool.Arena, s *seqTile, from, n, vdim, block int, buf []uint32) {
	t.laneTile.begin(j, ws, &avx512Lanes, s, from, n, vdim, block)
	t.qPairs = takeWords(ws, pairLanes*pairWords(j.p.Dim))
	if s.fold == 1 {
		pairColumns(t.qPairs, buf, &j.args.Q, s.QBatch, s.h, s.Q0+from, n)
		return
	}
	foldedColumns(t.qPairs, buf, &j.args.Q, s, from, n)
}

func (x *pairScratch) load(j *job, lo, hi int) {
	x.lo, x.hi, x.even = lo, hi, lo&^1
	if x.mask.hidesBlock(j, &avx512Lanes, &x.seqTile, lo, hi) {
		return
	}
	x.k = j.keysOf(&j.args.K, &x.seqTile, x.even, hi-x.even, x.kPages)
	v := j.keysOf(&j.args.V, &x.seqTile, x.even, hi-x.even, x.vPages)
	if x.mask.asked() {
		x.v.pack(v)
	} else {
		v.pair(x.v.pairs)
	}
}

// processKeys adds the keys [from, from+keys) to the sums of tile t. If edge is true, the band may
// hide some of these keys from some row. If hidden is true, the mask may hide some.
func (x *pairScratch) processKeys(j *job, t *pairTile, from, keys int, edge, hidden bool) {
	p, masked := &j.p, edge || hidden
	x.setMasks(&t.laneTile, from, keys, edge, hidden)
	top, step := x.beginScores(&t.laneTile, keys, masked)
	for i := 0; i < keys; i += step {
		n := min(step, keys-i)
		scoresAVX512BF16(&x.s[i*pairLanes], &x.k.rows[(from+i-x.even)*x.k.step], x.k.step, &t.qPairs[0], p.Dim, n, top)
		avx512Lanes.endScores(j, &t.laneTile, &x.laneScratch, from, i, n, masked)
	}
	expScoresAVX512(&x.s[0], keys, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	x.keepPart(&t.laneTile, pairLanes, from, keys)
	avx512Lanes.drop(j, &t.laneTile, &x.laneScratch, from, keys)
	if edge && !hidden {
		v, step := avx512Lanes.viewKeys(j, &j.args.V, &x.seqTile, from, keys, x.vBuf)
		addValuesAVX512(&t.o[0], &v[0], step, &x.s[0], keys, p.VDim, t.alpha(x.factors), &x.masks[0])
		return
	}
	x.addPairs(j, t, from, keys)
	if x.v.nonFinite {
		x.setMasks(&t.laneTile, from, keys, true, hidden)
		x.v.addNonFinite(t.o, from-x.even, keys, x.pPairs, x.masks)
	}
}

// addPairs adds P V of keys [from, from+keys) to O. It needs no masks: hidden keys have weight 0,
// and all elements of packed V that a weight of 0 multiplies are finite.
func (x *pairScratch) addPairs(j *job, t *pairTile, from, keys int) {
	vdim, pairs := j.p.VDim, (keys+1)/2
	if keys%2 == 1 {
		clear(x.s[keys*pairLanes:][:pairLanes])
	}
	narrowPairsAVX512BF16(&x.pPairs[0], &x.s[0], pairLanes, pairs)
	addValuesAVX512BF16(&t.o[0], &x.v.pairs[(from-x.even)/2*vdim], vdim, &x.pPairs[0], pairs, vdim, t.alpha(x.factors))
}
