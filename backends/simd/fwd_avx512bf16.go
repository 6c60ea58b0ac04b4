//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"time"

	"github.com/flashkit-go/flashkit"
)

// fwd_avx512bf16 computes what fwd_avx512 computes, in the same tiles, with
// VDPBF16PS: each product is of two pairs of bf16, added to a float32.
//
//	S = K Qᵀ          pairs of columns; K is read as it lies, Q is [dim/2][lanes]
//	P = exp(S - max)  in float32, then rounded to pairs of keys, [keys/2][lanes]
//	Oᵀ += Vᵀ P        pairs of keys; V is packed for each item, [keys/2][vdim]
//
// A pair of keys is one product, so the rows of a tile must see both or neither.
// At the edges of the band, where they do not, P stays in float32 and O gets the
// masked product of fwd_avx512, with those rows of V widened.
func (b *Backend) fwdAVX512BF16(ctx context.Context, c *flashkit.Call) error {
	j := b.newJob(c)
	avx512Lanes.plan(&j.plan, itemRows)
	work := fwdAVX512BF16Work(&j.plan)
	return b.do(ctx, j, fwdAVX512BF16Item, work.items, work.floats)
}

// fwdAVX512BF16Work returns the items of a planned job, and what each needs.
func fwdAVX512BF16Work(pl *plan) phase {
	p := &pl.p
	vdim, words, keys := pad(p.VDim), pairWords(p.Dim), avx512Lanes.keys
	perTile := pairLanes*words + pl.sumFloats(pairLanes, vdim, keys)
	shared := keys*(pairLanes+1+vdim) + keys/2*(pairLanes+vdim) + pairLanes*(words+vdim+3)
	return phase{p.Batch * p.Heads * ceilDiv(p.QLen, pl.group*pairLanes), pl.group*perTile + shared}
}

func fwdAVX512BF16Cost(p flashkit.Problem) time.Duration { return cost(fwdAVX512BF16Times(p)) }

func fwdAVX512BF16Times(p flashkit.Problem) timedPhase {
	pl := newPlan(p)
	avx512Lanes.plan(pl, itemRows)
	c := pairPace(fwdPairPace)
	return c.forward(&p, pairLanes, 2, fwdAVX512BF16Work(pl).items, pl.group*pairLanes, itemRows)
}

// A pairTile is a laneTile whose Q is in pairs.
type pairTile struct {
	laneTile
	qPairs []uint32 // [dim/2][lanes]
}

// A pairScratch is the workspace that the tiles of an item share.
type pairScratch struct {
	laneScratch
	laneRange
	pPairs []uint32 // [half of the keys of a block][lanes]
	vPairs []uint32 // [the same][vdim], from the even key vFrom on
	vFrom  int
	buf    []uint32 // rows of Q
}

func fwdAVX512BF16Item(j *job, ws *arena, item int) {
	p, f := &j.p, j.args
	at := j.laneRange(item, j.group*pairLanes)
	vdim, keys := pad(p.VDim), avx512Lanes.keys
	x := pairScratch{
		laneScratch: laneScratch{
			s: ws.take(keys * pairLanes), masks: takeWords(ws, keys),
			v: ws.take(keys * vdim), rows: ws.take(pairLanes * vdim),
			top: ws.take(pairLanes), hidden: ws.take(pairLanes), factors: ws.take(pairLanes),
		},
		laneRange: at,
		pPairs:    takeWords(ws, keys/2*pairLanes), vPairs: takeWords(ws, keys/2*vdim),
		buf: takeWords(ws, pairLanes*pairWords(p.Dim)),
	}
	var group [maxGroup]pairTile
	n := 0
	for r := at.from; r < at.to; r += pairLanes {
		group[n] = x.newTile(j, ws, r, min(pairLanes, at.to-r), vdim, keys)
		n++
	}
	for lo := at.first; lo < at.last; {
		hi := avx512Lanes.blockEnd(&at, lo)
		x.vFrom = lo &^ 1
		pairRows(x.vPairs, &f.V, x.b, x.kvHead, x.vFrom, hi-x.vFrom)
		for t := range n {
			if j.canceled() {
				return
			}
			avx512Lanes.meet(j, &group[t].laneTile, x.factors, lo)
			x.accumulate(j, &group[t], lo, hi)
		}
		lo = hi
	}
	for t := range n {
		avx512Lanes.finish(j, &group[t].laneTile, &x.laneScratch, x.b, x.h)
	}
}

// newTile loads and packs n query rows. Its O has vdim rows, and blocks are of so many
// keys.
func (x *pairScratch) newTile(j *job, ws *arena, from, n, vdim, block int) pairTile {
	t := pairTile{
		laneTile: avx512Lanes.emptyTile(j, ws, from, n, vdim, block),
		qPairs:   takeWords(ws, pairLanes*pairWords(j.p.Dim)),
	}
	pairColumns(t.qPairs, x.buf, &j.args.Q, x.b, x.h, from, n)
	return t
}

// accumulate takes the keys [lo, hi) into the tile.
func (x *pairScratch) accumulate(j *job, t *pairTile, lo, hi int) {
	p, k := &j.p, &j.args.K
	first, _ := p.Keys(t.from)
	_, last := p.Keys(t.from + t.n - 1)
	for from, to := max(lo, first), min(hi, last); from < to; {
		until, whole := wholePart(p, t.from, t.n, from, to, 2)
		copy(x.top, t.m)
		top := x.top
		if !whole {
			top = x.hidden // its maximum counts hidden keys
		}
		scoresAVX512BF16(&x.s[0], &k.Uint16s()[k.Offset(x.b, x.kvHead, from)], rowStep(k), &t.qPairs[0], p.Dim, until-from, &top[0])
		if whole {
			x.addWhole(j, t, from, until-from)
		} else {
			x.addMasked(j, t, from, until-from)
		}
		from = until
	}
}

// addWhole turns the scores of keys that all rows see into P and adds P V.
func (x *pairScratch) addWhole(j *job, t *pairTile, from, keys int) {
	vdim, pairs := j.p.VDim, (keys+1)/2
	weightsAVX512(&x.s[0], keys, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	if keys%2 == 1 {
		clear(x.s[keys*pairLanes:][:pairLanes])
	}
	narrowPairsAVX512BF16(&x.pPairs[0], &x.s[0], pairLanes, pairs)
	addValuesAVX512BF16(&t.o[0], &x.vPairs[(from-x.vFrom)/2*vdim], vdim, &x.pPairs[0], pairs, vdim, t.alpha(x.factors))
}

// addMasked does the same with keys that some rows do not see, in float32.
func (x *pairScratch) addMasked(j *job, t *pairTile, from, keys int) {
	p := &j.p
	x.setMasks(p, &t.laneTile, from, keys)
	maskScoresAVX512(&x.s[0], &x.masks[0], keys, &x.top[0])
	weightsAVX512(&x.s[0], keys, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	v, step := avx512Lanes.view(&j.args.V, x.b, x.kvHead, from, keys, x.v)
	addValuesMaskedAVX512(&t.o[0], &v[0], step, &x.s[0], keys, p.VDim, t.alpha(x.factors), &x.masks[0])
}
