//go:build amd64 && !purego

package simd

import "github.com/flashkit-go/flashkit/backends/simd/internal/pool"

// fwd_amxf32 is fwd_avx512 with AMX, and has fwd_amxbf16's tiles of query rows. A float32 is split
// into the sum of three bf16, so a float32 product is the sum of nine bf16 products. The kernel
// adds only the six largest, the smallest of them first, in float32. Each of the other three is
// below half a unit in the last place of the product.
//
//	S = K Qᵀ          planes of K as rows, planes of Q as pairs [dim/2][lanes]
//	P = exp(S - max)  in float32, then in planes of pairs of keys, [keys/2][lanes]
//	Oᵀ += Vᵀ P        planes of V, transposed, [vdim][keys/2] of pairs
//
// A plane holds one of the three bf16 of each element. K and V are packed for each item.
//
// Henry, Tang, Heinecke: Leveraging the bfloat16 artificial intelligence datatype for
// higher-precision computations, 2019.

const planeBlock = 128 // keys of a block

func fwdAMXF32Plan(pl *plan) {
	pl.planTiles()
	p := &pl.p
	vdim := upToTiles(p.VDim)
	perTile := pl.sumFloats(pairLanes, vdim, planeBlock) + planeWords(pairLanes, p.Dim)
	shared := planeBlock*(pairLanes+1+pairWords(p.VDim)) + planeWords(planeBlock, p.Dim) + 2*planeWords(planeBlock, p.VDim) +
		planes*pPlane + pairLanes*(vdim+3) + planeWords(pairLanes, p.Dim) + max(p.Dim, p.VDim)
	pl.setItems(perTile, shared+pl.featureFloats(pairLanes, planeBlock))
}

func fwdAMXF32Times(pl *plan) [3]timedPhase {
	pace := crowded(fwdPlanePace, pl.workers)
	return pace.forward(pl, pairLanes, tileStep, pl.rows)
}

const pPlane = planeBlock/2*pairLanes + planePad // distance between planes of P, in words

// planeTile is a laneTile whose Q is split into three planes of bf16 pairs.
type planeTile struct {
	laneTile
	rows tensorRows
	q    []uint32 // [planes][dim/2][lanes]
}

type planeScratch struct {
	laneScratch
	laneRange
	k, v     planeRows
	vPairs   []uint32 // scratch, one plane of [planeBlock/2][vdim]
	vColumns []uint32 // [planes][vdim][planeBlock/2]
	p        []uint32 // [planes][planeBlock/2][lanes]
	q        planeRows
	row      []float32
}

func fwdAMXF32Item(j *job, ws *pool.Arena, item int) {
	p := &j.p
	at := j.laneRange(item)
	vdim := upToTiles(p.VDim)
	x := planeScratch{
		laneScratch: laneScratch{
			s: ws.Take(planeBlock * pairLanes), masks: takeWords(ws, planeBlock), rows: ws.Take(pairLanes * vdim),
			top: ws.Take(pairLanes), scratchMax: ws.Take(pairLanes), factors: ws.Take(pairLanes),
		},
		laneRange: at,
		k:         newPlaneRows(ws, p.Dim, planeBlock), v: newPlaneRows(ws, p.VDim, planeBlock),
		vPairs: takeWords(ws, planeBlock*pairWords(p.VDim)), vColumns: takeWords(ws, planeWords(planeBlock, p.VDim)),
		p: takeWords(ws, planes*pPlane), q: newPlaneRows(ws, p.Dim, pairLanes), row: ws.Take(max(p.Dim, p.VDim)),
	}
	x.setFeatures(j, ws, pairLanes, planeBlock, tileStep)
	x.mask.narrow(j, &x.laneRange, pairLanes)
	if j.tilesPerItem == 1 {
		var one [1]planeTile
		x.compute(j, ws, one[:0])
		return
	}
	var tiles [tileItemRows / pairLanes]planeTile
	x.compute(j, ws, tiles[:0])
}

func (x *planeScratch) compute(j *job, ws *pool.Arena, tiles []planeTile) {
	for r := x.from; r < x.to; r += pairLanes {
		tiles = tiles[:len(tiles)+1]
		x.begin(j, ws, &tiles[len(tiles)-1], r, min(pairLanes, x.to-r))
	}
	j.blocksOf(x.laneRange, planeBlock, len(tiles), func(lo, hi int) { x.load(j, lo, hi) }, func(i int) {
		t := &tiles[i]
		avx512Lanes.flushRun(j, &t.laneTile, x.factors, x.lo)
		j.partsOf(&t.laneTile, &x.laneScratch, func(from, keys int, edge, hidden bool) { x.processKeys(j, t, from, keys, edge, hidden) })
	})
	for t := range tiles {
		avx512Lanes.finish(j, &tiles[t].laneTile, &x.laneScratch)
	}
	j.clearRows(&x.seqTile)
}

func (x *planeScratch) begin(j *job, ws *pool.Arena, t *planeTile, from, n int) {
	t.laneTile.begin(j, ws, &avx512Lanes, &x.seqTile, from, n, upToTiles(j.p.VDim), planeBlock)
	t.q = takeWords(ws, planeWords(pairLanes, j.p.Dim))
	x.q.load(&j.args.Q, x.QBatch, x.h, x.Q0+from, n, x.row)
	x.q.toLanes(t.q, x.q.plane())
	t.rows = x.q.tensorRows
}

func (x *planeScratch) load(j *job, lo, hi int) {
	x.lo, x.hi = lo, hi
	if x.mask.hidesBlock(j, &avx512Lanes, &x.seqTile, lo, hi) {
		return
	}
	x.k.loadKeys(j, &j.args.K, &x.seqTile, lo, hi-lo, x.row)
	x.v.loadKeys(j, &j.args.V, &x.seqTile, lo, hi-lo, x.row)
	x.v.toColumns(x.vColumns, x.vPairs)
}

// processKeys adds the keys [from, from+keys) to the sums of tile t. If edge is true, the band may
// hide some of these keys from some row. If hidden is true, the mask may hide some.
func (x *planeScratch) processKeys(j *job, t *planeTile, from, keys int, edge, hidden bool) {
	at := from - x.lo
	k, v, outliers := x.k.part(at, keys), x.v.part(at, keys), x.k.outliers || t.rows.outliers
	masked := edge || hidden || outliers || v.outliers // if there are outliers, the routine's row maxima are wrong: endScores must find them
	x.setMasks(&t.laneTile, from, keys, edge || masked && !hidden, hidden)
	top, _ := x.beginScores(&t.laneTile, keys, masked)
	planeScoresAMXBF16(&x.s[0], &x.k.rows[at*x.k.step], x.k.step, 4*x.k.plane(), &t.q[0], 4*x.q.plane(), x.k.step/2, keys, top)
	if outliers {
		addOutlierDots(x.s, &k, &t.rows, x.row)
	}
	avx512Lanes.endScores(j, &t.laneTile, &x.laneScratch, from, 0, keys, masked)
	hideLast(x.s, keys)
	pairs, filled := (keys+1)/2, upToTiles(keys)/2
	if x.drops {
		expScoresAVX512(&x.s[0], 2*pairs, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
		avx512Lanes.drop(j, &t.laneTile, &x.laneScratch, from, keys)
		planePairsAMXBF16(&x.p[0], 4*pPlane, &x.s[0], pairs)
	} else {
		planeWeightsAMXBF16(&x.p[0], 4*pPlane, &x.s[0], pairs, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	}
	if pairs < filled {
		for i := range planes {
			clear(x.p[i*pPlane+pairs*pairLanes : i*pPlane+filled*pairLanes])
		}
	}
	planeValuesAMXBF16(&t.o[0], &x.vColumns[at/2], planeBlock/2, 4*x.v.plane(), &x.p[0], 4*pPlane, filled, x.v.step, t.alpha(x.factors), &x.s[0])
	addOutlierSums(t.o, &v, x.p, pPlane, x.masks, x.row)
}
