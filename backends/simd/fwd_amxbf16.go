//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// fwd_amxbf16 computes what fwd_avx512bf16 computes, in the same tiles, with AMX:
// each product is of 16 rows of 32 bf16 by 16 columns of as many, added to float32.
//
//	S = K Qᵀ          K is read as it lies, Q is [dim/2][lanes] of pairs
//	P = exp(S - max)  in float32, then rounded to pairs of keys, [keys/2][lanes]
//	Oᵀ += Vᵀ P        V is transposed for each item, [vdim][keys/2] of pairs
//
// A product takes keys in steps of 32. At the edges of the band some rows do not
// see all of a step; they give the others the weight 0. That is no shield against
// NaN and infinities in V. An edge that has any leaves them out of the product and
// adds them to the rows that see them.
func (b *Backend) fwdAMXBF16(ctx context.Context, p flashkit.Problem, f *flashkit.Forward) error {
	j := b.newJob(p)
	j.fwd = *f
	avx512Lanes.plan(j, tileItemRows)
	work := fwdAMXBF16Work(j)
	return b.do(ctx, j, fwdAMXBF16Item, work.items, work.floats)
}

// tileKeys is the keys of a step.
const (
	tileKeys     = 32
	tileBlock    = 256 // keys of a block
	tileItemRows = 512 // query rows of an item: packing costs more beside faster products
)

// upToTiles rounds up to whole steps, of keys or of columns.
func upToTiles(n int) int { return (n + tileKeys - 1) &^ (tileKeys - 1) }

// fwdAMXBF16Work returns the items of a planned job, and what each needs.
func fwdAMXBF16Work(j *job) phase {
	p := &j.p
	vdim, words := upToTiles(p.VDim), pairWords(p.Dim)
	perTile := pairLanes * (words + vdim + 2)
	shared := tileBlock*(pairLanes+1+words) + tileBlock/2*(pairLanes+p.VDim+vdim) + vColumns + pairLanes*(words+vdim+3)
	return phase{p.Batch * p.Heads * tiles(p.QLen, j.group*pairLanes), j.group*perTile + shared}
}

func fwdAMXBF16Cost(p flashkit.Problem) time.Duration {
	return fwdTilePace.forward(&p, pairLanes)
}

// A tileScratch is the workspace that the query tiles of an item share, with the
// block of keys at hand.
type tileScratch struct {
	pairScratch
	lo, hi  int
	k       []uint16 // its rows of K, with 0 where they do not fill steps
	kStep   int
	kBuf    []uint16
	vPacked []uint32 // its rows of V, [vdim][tileBlock/2]
}

// vColumns is how many columns of pairs transposePairsAVX512BF16 takes.
const vColumns = 16

func fwdAMXBF16Item(j *job, ws *arena, item int) {
	p := &j.p
	from, head := j.laneItem(item, j.group*pairLanes)
	to := min(from+j.group*pairLanes, p.QLen)
	vdim, words := upToTiles(p.VDim), pairWords(p.Dim)
	x := tileScratch{
		pairScratch: pairScratch{
			laneScratch: laneScratch{
				s: ws.take(tileBlock * pairLanes), masks: takeWords(ws, tileBlock),
				rows: ws.take(pairLanes * vdim),
				top:  ws.take(pairLanes), hidden: ws.take(pairLanes), factors: ws.take(pairLanes),
			},
			b: head / p.Heads, h: head % p.Heads, kvHead: head % p.Heads / (p.Heads / p.KVHeads),
			pPairs: takeWords(ws, tileBlock/2*pairLanes), vPairs: takeWords(ws, tileBlock/2*p.VDim+vColumns),
			buf: takeWords(ws, pairLanes*words),
		},
		kBuf:    halves(takeWords(ws, tileBlock*words)),
		vPacked: takeWords(ws, tileBlock/2*vdim),
	}
	var group [maxGroup]pairTile
	n := 0
	for r := from; r < to; r += pairLanes {
		group[n] = x.newTile(j, ws, r, min(pairLanes, to-r), vdim)
		n++
	}
	first, _ := p.Keys(from)
	_, last := p.Keys(to - 1)
	if first < last {
		first, last = first&^(tileKeys-1), min(upToTiles(last), p.KVLen)
	}
	for k0 := first / tileBlock * tileBlock; first < last && k0 < last; k0 += tileBlock {
		x.load(j, max(k0, first), min(k0+tileBlock, last))
		for t := range n {
			if j.canceled() {
				return
			}
			x.absorb(j, &group[t])
		}
	}
	for t := range n {
		avx512Lanes.finish(j, &group[t].laneTile, &x.laneScratch, x.b, x.h)
	}
}

// load makes the keys [lo, hi) the block at hand. lo is a multiple of tileKeys,
// and so is hi, or it is the end.
func (x *tileScratch) load(j *job, lo, hi int) {
	p, k, v := &j.p, &j.fwd.K, &j.fwd.V
	x.lo, x.hi = lo, hi
	n := hi - lo
	if p.Dim%tileKeys == 0 && n%tileKeys == 0 {
		x.k, x.kStep = k.Uint16s()[k.Offset(x.b, x.kvHead, lo):], rowStep(k)
	} else {
		x.k, x.kStep = x.kBuf, upToTiles(p.Dim)
		clear(x.k[:upToTiles(n)*x.kStep])
		for i := range n {
			copy(x.k[i*x.kStep:][:p.Dim], k.Uint16s()[k.Offset(x.b, x.kvHead, lo+i):])
		}
	}
	pairRows(x.vPairs, v, x.b, x.kvHead, lo, n)
	pairs := upToTiles(n) / 2
	clear(x.vPairs[(n+1)/2*p.VDim : pairs*p.VDim])
	rows := halves(x.vPairs)
	for c := 0; c < p.VDim; c += vColumns { // beyond vdim is what nobody reads
		for r := 0; r < pairs; r += vColumns {
			transposePairsAVX512BF16(&x.vPacked[c*(tileBlock/2)+r], tileBlock/2, &rows[2*(r*p.VDim+c)], 2*p.VDim)
		}
	}
}

// absorb takes the keys of the block into the tile.
func (x *tileScratch) absorb(j *job, t *pairTile) {
	p := &j.p
	first, _ := p.Keys(t.from)
	_, last := p.Keys(t.from + t.n - 1)
	if first >= last {
		return
	}
	for from, to := max(x.lo, first&^(tileKeys-1)), min(x.hi, upToTiles(last)); from < to; {
		until, whole := wholePart(p, t.from, t.n, from, to, tileKeys)
		x.absorbPart(j, t, from, until-from, whole)
		from = until
	}
}

// absorbPart takes keys into the tile, from a given one on. All rows see all of a
// whole part.
func (x *tileScratch) absorbPart(j *job, t *pairTile, from, keys int, whole bool) {
	p, v := &j.p, &j.fwd.V
	copy(x.top, t.m)
	top := x.top
	if !whole {
		top = x.hidden // its maximum counts hidden keys
	}
	scoresAMXBF16(&x.s[0], &x.k[(from-x.lo)*x.kStep], x.kStep, &t.qPairs[0], pairWords(p.Dim), keys, &top[0])
	wild := false
	if !whole {
		wild = !finiteAMXBF16(&v.Uint16s()[v.Offset(x.b, x.kvHead, from)], rowStep(v), p.VDim, keys)
		x.setMasks(p, &t.laneTile, from, keys)
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
	if wild {
		x.hideWild(j, from, keys)
	}
	addValuesAMXBF16(&t.o[0], &x.vPacked[(from-x.lo)/2], tileBlock/2, &x.pPairs[0], filled, upToTiles(p.VDim), &x.factors[0], &x.s[0])
	if wild {
		x.addWild(j, t, from, keys)
	}
}

// packed returns a column of V, from a given key on.
func (x *tileScratch) packed(c, from, keys int) []uint16 {
	return halves(x.vPacked[c*(tileBlock/2)+(from-x.lo)/2:])[:keys]
}

// isWild reports whether a bf16 is NaN or infinite.
func isWild(v uint16) bool { return v&0x7f80 == 0x7f80 }

// hideWild sets what is wild in the packed V to 0.
func (x *tileScratch) hideWild(j *job, from, keys int) {
	for c := range j.p.VDim {
		column := x.packed(c, from, keys)
		for key, v := range column {
			if isWild(v) {
				column[key] = 0
			}
		}
	}
}

// addWild puts back what hideWild hid, and adds it to O in the rows that see it.
func (x *tileScratch) addWild(j *job, t *pairTile, from, keys int) {
	v, weights := &j.fwd.V, halves(x.pPairs)
	for key := range keys {
		row := v.Uint16s()[v.Offset(x.b, x.kvHead, from+key):][:j.p.VDim]
		for c, wild := range row {
			if !isWild(wild) {
				continue
			}
			x.packed(c, from, keys)[key] = wild
			for i := range pairLanes {
				if x.masks[key]>>i&1 != 0 {
					t.o[c*pairLanes+i] += half.FromBF16(weights[2*(key/2*pairLanes+i)+key%2]) * half.FromBF16(wild)
				}
			}
		}
	}
}
