//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// fwd_amxbf16 computes what fwd_avx512bf16 computes, in the same tiles, with AMX:
// each product is of 16 rows of 32 bf16 by 16 columns of as many, added to float32.
//
//	S = K Qᵀ          K is read as it lies, Q is [dim/2][lanes] of pairs
//	P = exp(S - max)  in float32, then rounded to pairs of keys, [keys/2][lanes]
//	Oᵀ += Vᵀ P        V is transposed for each item, [vdim][keys/2] of pairs
//
// At the edges of the band rows give the keys that they do not see the weight 0.
func (b *Backend) fwdAMXBF16(ctx context.Context, c *flashkit.Call) error {
	j := b.newJob(c)
	j.planTiles()
	work := fwdAMXBF16Work(&j.plan)
	return b.do(ctx, j, fwdAMXBF16Item, work.items, work.floats)
}

const (
	tileBlock    = 256  // keys of a block
	tileItemRows = 1024 // query rows of an item: packing costs more beside faster products
)

// fwdAMXBF16Work returns the items of a planned job, and what each needs.
func fwdAMXBF16Work(pl *plan) phase {
	p := &pl.p
	vdim, words := upToTiles(p.VDim), pairWords(p.Dim)
	perTile := pairLanes*words + pl.sumFloats(pairLanes, vdim, tileBlock)
	shared := tileBlock*(pairLanes+1+words) + tileBlock/2*pairLanes + packedFloats(p.VDim, tileBlock) + pairLanes*(words+vdim+3)
	return phase{p.Batch * p.Heads * ceilDiv(p.QLen, pl.group*pairLanes), pl.group*perTile + shared}
}

func fwdAMXBF16Cost(p flashkit.Problem) time.Duration { return cost(fwdAMXBF16Times(p)) }

func fwdAMXBF16Times(p flashkit.Problem) timedPhase {
	pl := newPlan(p)
	pl.planTiles()
	return fwdTilePace.forward(&p, pairLanes, tileStep, fwdAMXBF16Work(pl).items, pl.group*pairLanes, pl.group*pairLanes)
}

// A tileScratch is the workspace that the query tiles of an item share, with the
// block of keys at hand.
type tileScratch struct {
	pairScratch
	lo, hi int
	k      []uint16
	kStep  int
	kBuf   []uint16
	v      packedRows
}

func fwdAMXBF16Item(j *job, ws *arena, item int) {
	p := &j.p
	at := j.laneRange(item, j.group*pairLanes)
	vdim, words := upToTiles(p.VDim), pairWords(p.Dim)
	x := tileScratch{
		pairScratch: pairScratch{
			laneScratch: laneScratch{
				s: ws.take(tileBlock * pairLanes), masks: takeWords(ws, tileBlock),
				rows: ws.take(pairLanes * vdim),
				top:  ws.take(pairLanes), hidden: ws.take(pairLanes), factors: ws.take(pairLanes),
			},
			laneRange: at,
			pPairs:    takeWords(ws, tileBlock/2*pairLanes),
			buf:       takeWords(ws, pairLanes*words),
		},
		kBuf: halves(takeWords(ws, tileBlock*words)),
		v:    newPackedRows(ws, p.VDim, tileBlock),
	}
	var group [tileItemRows / pairLanes]pairTile
	n := 0
	for r := at.from; r < at.to; r += pairLanes {
		group[n] = x.newTile(j, ws, r, min(pairLanes, at.to-r), vdim, tileBlock)
		n++
	}
	j.blocksOf(at, tileBlock, n, func(lo, hi int) { x.load(j, lo, hi) }, func(t int) {
		avx512Lanes.meet(j, &group[t].laneTile, x.factors, x.lo)
		j.partsOf(&group[t].laneTile, x.lo, x.hi, func(from, keys int, whole bool) { x.accumulate(j, &group[t], from, keys, whole) })
	})
	for t := range n {
		avx512Lanes.finish(j, &group[t].laneTile, &x.laneScratch, x.b, x.h)
	}
}

// load makes the keys [lo, hi) the block at hand.
func (x *tileScratch) load(j *job, lo, hi int) {
	x.lo, x.hi = lo, hi
	x.k, x.kStep = tileRows(&j.args.K, x.b, x.kvHead, lo, hi-lo, x.kBuf)
	x.v.load(&j.args.V, x.b, x.kvHead, lo, hi-lo)
	x.v.transpose()
}

// accumulate takes keys of the block into the tile, from a given one on. All rows see all
// of a whole part.
func (x *tileScratch) accumulate(j *job, t *pairTile, from, keys int, whole bool) {
	p, at := &j.p, from-x.lo
	copy(x.top, t.m)
	top := x.top
	if !whole {
		top = x.hidden // its maximum counts hidden keys
	}
	scoresAMXBF16(&x.s[0], &x.k[at*x.kStep], x.kStep, &t.qPairs[0], pairWords(p.Dim), keys, &top[0])
	if !whole || x.v.wild {
		x.setMasks(p, &t.laneTile, from, keys)
	}
	if !whole {
		maskScoresAVX512(&x.s[0], &x.masks[0], keys, &x.top[0])
	}
	if keys%2 == 1 {
		last := x.s[keys*pairLanes:][:pairLanes]
		for i := range last {
			last[i] = float32(math.Inf(-1))
		}
	}
	pairs, filled := (keys+1)/2, upToTiles(keys)/2
	weightsAMXBF16(&x.pPairs[0], &x.s[0], pairs, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	clear(x.pPairs[pairs*pairLanes : filled*pairLanes])
	addValuesAMXBF16(&t.o[0], &x.v.columns[at/2], x.v.step, &x.pPairs[0], filled, upToTiles(p.VDim), t.alpha(x.factors), &x.s[0])
	if x.v.wild {
		x.v.addWild(t.o, at, keys, x.pPairs, x.masks)
	}
}
