//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// fwd_amxf32 computes what fwd_avx512 computes, in the tiles of fwd_amxbf16, with
// AMX: a float32 is the sum of three bf16, and a product of float32 six products
// of bf16, added to float32 from the smallest on. What is left out is below half a
// unit in the last place.
//
//	S = K Qᵀ          planes of K, of rows; of Q, [dim/2][lanes] of pairs
//	P = exp(S - max)  in float32, then in planes of pairs of keys, [keys/2][lanes]
//	Oᵀ += Vᵀ P        planes of V, transposed, [vdim][keys/2] of pairs
//
// K and V are packed for each item.
//
// Henry, Tang, Heinecke: Leveraging the bfloat16 artificial intelligence datatype
// for higher-precision computations, 2019.
func (b *Backend) fwdAMXF32(ctx context.Context, c *flashkit.Call) error {
	j := b.newJob(c)
	j.planTiles()
	work := fwdAMXF32Work(&j.plan)
	return b.do(ctx, j, fwdAMXF32Item, work.items, work.floats)
}

const planeBlock = 128 // keys of a block

// fwdAMXF32Work returns the items of a planned job, and what each needs.
func fwdAMXF32Work(pl *plan) phase {
	p := &pl.p
	vdim := upToTiles(p.VDim)
	perTile := pl.sumFloats(pairLanes, vdim, planeBlock) + planeWords(pairLanes, p.Dim)
	shared := planeBlock*(pairLanes+1+pairWords(p.VDim)) + planeWords(planeBlock, p.Dim) + 2*planeWords(planeBlock, p.VDim) +
		planes*pPlane + pairLanes*(vdim+3) + planeWords(pairLanes, p.Dim) + max(p.Dim, p.VDim)
	return phase{p.Batch * p.Heads * ceilDiv(p.QLen, pl.group*pairLanes), pl.group*perTile + shared}
}

const pPlane = planeBlock/2*pairLanes + planePad // of P

func fwdAMXF32Cost(p flashkit.Problem) time.Duration { return cost(fwdAMXF32Times(p)) }

func fwdAMXF32Times(p flashkit.Problem) timedPhase {
	pl := newPlan(p)
	pl.planTiles()
	c := crowded(fwdPlanePace, pl.workers)
	return c.forward(&p, pairLanes, tileStep, fwdAMXF32Work(pl).items, pl.group*pairLanes, pl.group*pairLanes)
}

// A planeTile is a laneTile whose Q is in planes of pairs.
type planeTile struct {
	laneTile
	rows tensorRows
	q    []uint32 // [planes][dim/2][lanes]
}

// A planeScratch is the workspace that the query tiles of an item share, with the
// block of keys at hand.
type planeScratch struct {
	laneScratch
	laneRange
	lo, hi   int
	k, v     planeRows
	vPairs   []uint32 // one plane of [planeBlock/2][vdim]
	vColumns []uint32 // [planes][vdim][planeBlock/2]
	p        []uint32 // [planes][planeBlock/2][lanes]
	q        planeRows
	row      []float32
}

func fwdAMXF32Item(j *job, ws *arena, item int) {
	p := &j.p
	at := j.laneRange(item, j.group*pairLanes)
	vdim := upToTiles(p.VDim)
	x := planeScratch{
		laneScratch: laneScratch{
			s: ws.take(planeBlock * pairLanes), masks: takeWords(ws, planeBlock), rows: ws.take(pairLanes * vdim),
			top: ws.take(pairLanes), hidden: ws.take(pairLanes), factors: ws.take(pairLanes),
		},
		laneRange: at,
		k:         newPlaneRows(ws, p.Dim, planeBlock), v: newPlaneRows(ws, p.VDim, planeBlock),
		vPairs: takeWords(ws, planeBlock*pairWords(p.VDim)), vColumns: takeWords(ws, planeWords(planeBlock, p.VDim)),
		p: takeWords(ws, planes*pPlane), q: newPlaneRows(ws, p.Dim, pairLanes), row: ws.take(max(p.Dim, p.VDim)),
	}
	var group [tileItemRows / pairLanes]planeTile
	n := 0
	for r := at.from; r < at.to; r += pairLanes {
		group[n] = x.newTile(j, ws, r, min(pairLanes, at.to-r))
		n++
	}
	j.blocksOf(at, planeBlock, n, func(lo, hi int) { x.load(j, lo, hi) }, func(t int) {
		avx512Lanes.meet(j, &group[t].laneTile, x.factors, x.lo)
		j.partsOf(&group[t].laneTile, x.lo, x.hi, func(from, keys int, whole bool) { x.accumulate(j, &group[t], from, keys, whole) })
	})
	for t := range n {
		avx512Lanes.finish(j, &group[t].laneTile, &x.laneScratch, x.b, x.h)
	}
}

// newTile loads and packs n query rows.
func (x *planeScratch) newTile(j *job, ws *arena, from, n int) planeTile {
	t := planeTile{
		laneTile: avx512Lanes.emptyTile(j, ws, from, n, upToTiles(j.p.VDim), planeBlock),
		q:        takeWords(ws, planeWords(pairLanes, j.p.Dim)),
	}
	x.q.load(&j.args.Q, x.b, x.h, from, n, x.row)
	x.q.toLanes(t.q, x.q.plane())
	t.rows = x.q.tensorRows
	return t
}

// load makes the keys [lo, hi) the block at hand.
func (x *planeScratch) load(j *job, lo, hi int) {
	x.lo, x.hi = lo, hi
	x.k.load(&j.args.K, x.b, x.kvHead, lo, hi-lo, x.row)
	x.v.load(&j.args.V, x.b, x.kvHead, lo, hi-lo, x.row)
	x.v.toColumns(x.vColumns, x.vPairs)
}

// accumulate takes keys of the block into the tile, from a given one on. All rows see all
// of a whole part.
func (x *planeScratch) accumulate(j *job, t *planeTile, from, keys int, whole bool) {
	p, at := &j.p, from-x.lo
	k, v, wild := x.k.part(at, keys), x.v.part(at, keys), x.k.wild || t.rows.wild
	copy(x.top, t.m)
	top := x.top
	if !whole || wild {
		top = x.hidden // its maximum counts hidden keys, or lacks something
	}
	planeScoresAMXBF16(&x.s[0], &x.k.rows[at*x.k.step], x.k.step, 4*x.k.plane(), &t.q[0], 4*x.q.plane(), x.k.step/2, keys, &top[0])
	if wild {
		addWildDots(x.s, &k, &t.rows, x.row)
	}
	if !whole || wild || v.wild {
		x.setMasks(p, &t.laneTile, from, keys)
		copy(x.top, t.m)
		maskScoresAVX512(&x.s[0], &x.masks[0], keys, &x.top[0])
	}
	if keys%2 == 1 {
		last := x.s[keys*pairLanes:][:pairLanes]
		for i := range last {
			last[i] = float32(math.Inf(-1))
		}
	}
	pairs, filled := (keys+1)/2, upToTiles(keys)/2
	planeWeightsAMXBF16(&x.p[0], 4*pPlane, &x.s[0], pairs, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	if pairs < filled {
		for i := range planes {
			clear(x.p[i*pPlane+pairs*pairLanes : i*pPlane+filled*pairLanes])
		}
	}
	planeValuesAMXBF16(&t.o[0], &x.vColumns[at/2], planeBlock/2, 4*x.v.plane(), &x.p[0], 4*pPlane, filled, x.v.step, t.alpha(x.factors), &x.s[0])
	addWildSums(t.o, &v, x.p, pPlane, x.masks, x.row)
}
