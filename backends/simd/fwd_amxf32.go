//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
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
// K and V are packed for each item. Elements of Q, K and V that are not finite, or
// so large that a part of a product could overflow and the sum not, are packed as 0
// and added apart, in float32, for those who see them.
//
// Henry, Tang, Heinecke: Leveraging the bfloat16 artificial intelligence datatype
// for higher-precision computations, 2019.
func (b *Backend) fwdAMXF32(ctx context.Context, p flashkit.Problem, f *flashkit.Forward) error {
	j := b.newJob(p)
	j.fwd = *f
	avx512Lanes.plan(j, tileItemRows)
	work := fwdAMXF32Work(j)
	return b.do(ctx, j, fwdAMXF32Item, work.items, work.floats)
}

const (
	planes     = 3
	planeBlock = 128 // keys of a block
	planePad   = 16  // words between planes, which must not fall on the same cache lines
)

// fwdAMXF32Work returns the items of a planned job, and what each needs.
func fwdAMXF32Work(j *job) phase {
	p := &j.p
	vdim, words, vwords := upToTiles(p.VDim), pairWords(p.Dim), pairWords(p.VDim)
	perTile := pairLanes*(vdim+2) + planes*planeOf(pairLanes*words)
	shared := planeBlock*(pairLanes+1+vwords) + planes*(planeOf(planeBlock*words)+2*planeOf(planeBlock*vwords)+pPlane) +
		pairLanes*(vdim+3) + planes*planeOf(pairLanes*words) + max(p.Dim, p.VDim)
	return phase{p.Batch * p.Heads * tiles(p.QLen, j.group*pairLanes), j.group*perTile + shared}
}

// planeOf returns the distance of planes of n words.
func planeOf(n int) int { return n + planePad }

const pPlane = planeBlock/2*pairLanes + planePad // of P

func fwdAMXF32Cost(p flashkit.Problem) time.Duration {
	return fwdPlanePace.forward(&p, pairLanes, plannedRows(p))
}

func fitsAMXF32(p flashkit.Problem) string {
	if p.DType == flashkit.BFloat16 {
		return "it takes f32 and f16 only"
	}
	return amxbf16().missing()
}

// A planeTile is a laneTile whose Q is in planes of pairs.
type planeTile struct {
	laneTile
	wild bool     // Q has elements that are packed as 0
	q    []uint32 // [planes][dim/2][lanes]
}

// A planeScratch is the workspace that the query tiles of an item share, with the
// block of keys at hand.
type planeScratch struct {
	laneScratch
	b, h, kvHead int
	lo, hi       int
	kWild, vWild bool     // the block has elements that are packed as 0
	k            []uint16 // [planes][planeBlock][dim]
	vRows        []uint16 // [planes][planeBlock][vdim]
	vPairs       []uint32 // [planeBlock/2][vdim]
	v            []uint32 // [planes][vdim][planeBlock/2]
	p            []uint32 // [planes][planeBlock/2][lanes]
	qRows        []uint16 // [planes][lanes][dim]
	row          []float32
}

func fwdAMXF32Item(j *job, ws *arena, item int) {
	p := &j.p
	from, head := j.laneItem(item, j.group*pairLanes)
	to := min(from+j.group*pairLanes, p.QLen)
	vdim, words, vwords := upToTiles(p.VDim), pairWords(p.Dim), pairWords(p.VDim)
	x := planeScratch{
		laneScratch: laneScratch{
			s: ws.take(planeBlock * pairLanes), masks: takeWords(ws, planeBlock), rows: ws.take(pairLanes * vdim),
			top: ws.take(pairLanes), hidden: ws.take(pairLanes), factors: ws.take(pairLanes),
		},
		b: head / p.Heads, h: head % p.Heads, kvHead: head % p.Heads / (p.Heads / p.KVHeads),
		k:     halves(takeWords(ws, planes*planeOf(planeBlock*words))),
		vRows: halves(takeWords(ws, planes*planeOf(planeBlock*vwords))), vPairs: takeWords(ws, planeBlock*vwords),
		v: takeWords(ws, planes*planeOf(planeBlock*vwords)), p: takeWords(ws, planes*pPlane),
		qRows: halves(takeWords(ws, planes*planeOf(pairLanes*words))), row: ws.take(max(p.Dim, p.VDim)),
	}
	var group [maxGroup]planeTile
	n := 0
	for r := from; r < to; r += pairLanes {
		group[n] = x.newTile(j, ws, r, min(pairLanes, to-r))
		n++
	}
	j.blocksOf(from, to, planeBlock, n, func(lo, hi int) { x.load(j, lo, hi) }, func(t int) {
		j.partsOf(&group[t].laneTile, x.lo, x.hi, func(from, keys int, whole bool) { x.absorb(j, &group[t], from, keys, whole) })
	})
	for t := range n {
		avx512Lanes.finish(j, &group[t].laneTile, &x.laneScratch, x.b, x.h)
	}
}

// newTile loads and packs n query rows.
func (x *planeScratch) newTile(j *job, ws *arena, from, n int) planeTile {
	words := pairWords(j.p.Dim)
	t := planeTile{
		laneTile: avx512Lanes.emptyTile(ws, from, n, upToTiles(j.p.VDim)),
		q:        takeWords(ws, planes*planeOf(pairLanes*words)),
	}
	t.wild = splitRows(x.qRows, pairLanes, &j.fwd.Q, x.b, x.h, from, n, x.row)
	for i := range planes {
		plane := planeOf(pairLanes * words)
		transposeColumns(t.q[i*plane:], pairLanes, x.qRows[2*i*plane:], 2*words, words, pairLanes)
	}
	return t
}

// splitRows sets dst, [planes][rows][dim] of whole steps, to n rows of t, and 0
// where they do not fill steps. It reports whether it left anything out.
func splitRows(dst []uint16, rows int, t *flashkit.Tensor, b, h, r, n int, row []float32) (wild bool) {
	dim := t.Shape()[3]
	step := upToTiles(dim)
	if dim != step || n%tileStep != 0 {
		clear(dst)
	}
	for i := range n {
		src, at := row[:dim], t.Offset(b, h, r+i)
		if t.DType() == flashkit.Float32 {
			src = t.Float32s()[at:][:dim]
		} else {
			avx512Lanes.load(src, t, at)
		}
		if !splitRowAMXBF16(&dst[i*step], 4*planeOf(rows*step/2), &src[0], dim) {
			wild = true
		}
	}
	return wild
}

// isTooWild reports whether splitRows leaves x out.
func isTooWild(x float32) bool { return !(float32(math.Abs(float64(x))) < 0x1p58) }

// load makes the keys [lo, hi) the block at hand.
func (x *planeScratch) load(j *job, lo, hi int) {
	p, n := &j.p, hi-lo
	vdim := upToTiles(p.VDim)
	x.lo, x.hi = lo, hi
	x.kWild = splitRows(x.k, planeBlock, &j.fwd.K, x.b, x.kvHead, lo, n, x.row)
	x.vWild = splitRows(x.vRows, planeBlock, &j.fwd.V, x.b, x.kvHead, lo, n, x.row)
	for i := range planes {
		plane := planeOf(planeBlock / 2 * vdim)
		pairRowsAVX512BF16(&x.vPairs[0], &x.vRows[2*i*plane], vdim, vdim, upToTiles(n)/2)
		transposeColumns(x.v[i*plane:], planeBlock/2, halves(x.vPairs), 2*vdim, vdim, upToTiles(n)/2)
	}
}

// absorb takes keys of the block into the tile, from a given one on. All rows see all
// of a whole part.
func (x *planeScratch) absorb(j *job, t *planeTile, from, keys int, whole bool) {
	p, at := &j.p, from-x.lo
	words, vdim := pairWords(p.Dim), upToTiles(p.VDim)
	copy(x.top, t.m)
	top := x.top
	if !whole || x.kWild || t.wild {
		top = x.hidden // its maximum counts hidden keys, or lacks something
	}
	planeScoresAMXBF16(&x.s[0], &x.k[at*2*words], 2*words, 4*planeOf(planeBlock*words), &t.q[0], 4*planeOf(pairLanes*words), words, keys, &top[0])
	if x.kWild || t.wild {
		x.addWildScores(j, t, from, keys)
	}
	if !whole || x.kWild || t.wild || x.vWild {
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
	planeValuesAMXBF16(&t.o[0], &x.v[at/2], planeBlock/2, 4*planeOf(planeBlock/2*vdim), &x.p[0], 4*pPlane, filled, vdim, &x.factors[0], &x.s[0])
	if x.vWild {
		x.addWildValues(j, t, from, keys)
	}
}

// addWildScores adds to S what the planes of K leave out, and then what those of Q
// do with the rest of K.
func (x *planeScratch) addWildScores(j *job, t *planeTile, from, keys int) {
	q, k, row := &j.fwd.Q, &j.fwd.K, x.row[:j.p.Dim]
	for key := range keys {
		load(row, k, k.Offset(x.b, x.kvHead, from+key))
		for c, y := range row {
			for i := 0; i < t.n && isTooWild(y); i++ {
				x.s[key*pairLanes+i] += y * element(q, x.b, x.h, t.from+i, c)
			}
		}
	}
	for i := 0; i < t.n && t.wild; i++ {
		load(row, q, q.Offset(x.b, x.h, t.from+i))
		for c, z := range row {
			for key := 0; key < keys && isTooWild(z); key++ {
				if y := element(k, x.b, x.kvHead, from+key, c); !isTooWild(y) {
					x.s[key*pairLanes+i] += y * z
				}
			}
		}
	}
}

// addWildValues adds to O what the planes of V leave out, for the rows that see it.
func (x *planeScratch) addWildValues(j *job, t *planeTile, from, keys int) {
	const plane = 2 * pPlane
	v, w := &j.fwd.V, halves(x.p)
	for key := range keys {
		for c := range j.p.VDim {
			y := element(v, x.b, x.kvHead, from+key, c)
			if !isTooWild(y) {
				continue
			}
			for i := range pairLanes {
				if x.masks[key]>>i&1 != 0 {
					at := 2*(key/2*pairLanes+i) + key%2
					weight := half.FromBF16(w[at]) + half.FromBF16(w[plane+at]) + half.FromBF16(w[2*plane+at])
					t.o[c*pairLanes+i] += weight * y
				}
			}
		}
	}
}

// element returns one element of t.
func element(t *flashkit.Tensor, b, h, r, c int) float32 {
	var x [1]float32
	load(x[:], t, t.Offset(b, h, r)+c)
	return x[0]
}
