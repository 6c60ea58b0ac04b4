//go:build arm64 && !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// fwd_neonbf16 is fwd_neon with BFMMLA, and has the same tiles. The instruction computes the dot
// products of two rows of four bf16 with two other rows of four bf16. It adds the four dot products
// to 2 x 2 float32.
//
//	S = K Qᵀ          fours of columns; K is read in place, Q is packed for each tile
//	P = exp(S - max)  in float32, then rounded to fours of keys, [keys/4][lanes][4]
//	Oᵀ += Vᵀ P        fours of keys; V is packed for each item, [keys/4][vdim][4]
//
// The instruction cannot skip one of four keys. But at the edges of the band of visible keys, or
// under a mask, a row may see only some of the four. There P stays in float32, and the masked
// product of fwd_neon adds P times widened rows of V to O.

const quad = 4 // elements that one BFMMLA multiplies in each row: columns for S, keys for O

// upToQuads rounds dim, the number of columns of packed rows, up to whole vectors of 8 bf16.
func upToQuads(dim int) int { return (dim + 7) &^ 7 }

func fwdNEONBF16Plan(pl *plan) {
	neonLanes.planRows(pl, itemRows)
	p, lanes, keys := &pl.p, neonLanes.lanes, neonLanes.keys
	dim, vdim := pad(p.Dim), pad(p.VDim)
	perTile := lanes*dim/2 + pl.sumFloats(lanes, vdim, keys)
	shared := keys*(lanes+1+vdim) + lanes*(vdim+3) + keys*lanes/2 + keys*dim/2 + (keys+quad)*vdim/2 + lanes*max(dim, vdim)/2
	pages := pl.pageFloats(keys, p.Dim) + pl.pageFloats(keys+quad, p.VDim)
	pl.setItems(perTile, shared+pl.featureFloats(lanes, keys)+pages)
}

func fwdNEONBF16Times(pl *plan) [3]timedPhase {
	pace := neonPace(fwdQuadCycles)
	return pace.forward(pl, neonLanes.lanes, quad, itemRows)
}

func fitsNEONBF16(p flashkit.Problem) string {
	return refusesAllBut(flashkit.BFloat16, p, neonBF16.refuses(p))
}

// quadTile is a laneTile whose Q is packed by packQueriesNEONBF16.
type quadTile struct {
	laneTile
	queries []uint16 // [dim/8][2][8][2][4]
}

type quadScratch struct {
	laneScratch
	laneRange
	keys    halfRows // K of the block, from key number lo on, in whole vectors
	base    int      // number of the first key of values, a multiple of quad
	values  []uint16 // V, packed by packKeysNEONBF16, with columns rounded up to whole vectors
	weights []uint16 // P, packed by packWeightsNEONBF16
	padded  []uint16 // K, padded to whole vectors
	buf     []uint16 // rows of Q, or four rows of V, padded

	kPages, vPages []uint16 // copies of rows of K and V from pages
}

func fwdNEONBF16Item(j *job, ws *pool.Arena, item int) {
	p, lanes, keys := &j.p, neonLanes.lanes, neonLanes.keys
	dim, vdim := pad(p.Dim), pad(p.VDim)
	x := quadScratch{
		laneScratch: laneScratch{
			s: ws.Take(keys * lanes), masks: takeWords(ws, keys),
			vBuf: ws.Take(keys * vdim), rows: ws.Take(lanes * vdim),
			top: ws.Take(lanes), scratchMax: ws.Take(lanes), factors: ws.Take(lanes),
		},
		laneRange: j.laneRange(item),
		weights:   halves(takeWords(ws, keys*lanes/2)), padded: halves(takeWords(ws, keys*dim/2)),
		values: halves(takeWords(ws, (keys+quad)*vdim/2)), buf: halves(takeWords(ws, lanes*max(dim, vdim)/2)),
		kPages: j.newPage(ws, keys, p.Dim), vPages: j.newPage(ws, keys+quad, p.VDim),
	}
	x.setFeatures(j, ws, lanes, keys, quad)
	x.mask.narrow(j, &x.laneRange, lanes)
	if j.tilesPerItem == 1 {
		var one [1]quadTile
		x.compute(j, ws, one[:0])
		return
	}
	var tiles [maxTiles]quadTile
	x.compute(j, ws, tiles[:0])
}

func (x *quadScratch) compute(j *job, ws *pool.Arena, tiles []quadTile) {
	lanes := neonLanes.lanes
	for r := x.from; r < x.to; r += lanes {
		tiles = tiles[:len(tiles)+1]
		x.begin(j, ws, &tiles[len(tiles)-1], r, min(lanes, x.to-r))
	}
	for lo := x.first; lo < x.last; lo = x.hi {
		x.load(j, lo, neonLanes.blockEnd(&x.laneRange, lo))
		for t := range tiles {
			if j.Canceled() {
				return
			}
			t := &tiles[t]
			neonLanes.flushRun(j, &t.laneTile, x.factors, lo)
			neonLanes.eachPart(j, &t.laneTile, &x.laneScratch, quad, 1, func(from, keys int, edge, hidden bool) {
				x.processKeys(j, t, from, keys, edge, hidden)
			})
		}
	}
	for t := range tiles {
		neonLanes.finish(j, &tiles[t].laneTile, &x.laneScratch)
	}
	j.clearRows(&x.seqTile)
}

func (x *quadScratch) begin(j *job, ws *pool.Arena, t *quadTile, from, n int) {
	dim, lanes := j.p.Dim, neonLanes.lanes
	t.laneTile.begin(j, ws, &neonLanes, &x.seqTile, from, n, pad(j.p.VDim), neonLanes.keys)
	t.queries = halves(takeWords(ws, lanes*pad(dim)/2))
	rows := rowsOf(&j.args.Q, x.QBatch, x.h, x.Q0+from, n)
	if n < lanes || dim%8 != 0 {
		rows = rows.padTo(x.buf, lanes, upToQuads(dim))
	}
	packQueriesNEONBF16(&t.queries[0], &rows.rows[0], rows.step, rows.dim)
}

// padTo copies the rows of x to dst, padded with zeros to n rows of dim elements. It returns the
// copy.
func (x halfRows) padTo(dst []uint16, n, dim int) halfRows {
	for i := range n {
		row := dst[i*dim:][:dim]
		filled := 0
		if i < x.n {
			filled = copy(row, x.rows[i*x.step:][:x.dim])
		}
		clear(row[filled:])
	}
	return halfRows{dst, dim, dim, n}
}

func (x *quadScratch) load(j *job, lo, hi int) {
	x.lo, x.hi, x.base = lo, hi, lo&^(quad-1)
	if x.mask.hidesBlock(j, &neonLanes, &x.seqTile, lo, hi) {
		return
	}
	x.keys = j.keysOf(&j.args.K, &x.seqTile, lo, hi-lo, x.kPages)
	if x.keys.dim%8 != 0 {
		x.keys = x.keys.padTo(x.padded, hi-lo, upToQuads(x.keys.dim))
	}
	v := j.keysOf(&j.args.V, &x.seqTile, x.base, hi-x.base, x.vPages)
	width, whole := upToQuads(v.dim), 0
	if v.dim == width {
		whole = v.n / quad
	}
	if whole > 0 {
		packKeysNEONBF16(&x.values[0], &v.rows[0], v.step, width, whole)
	}
	for q := whole; q*quad < v.n; q++ {
		rest := halfRows{v.rows[q*quad*v.step:], v.step, v.dim, v.n - q*quad}
		four := rest.padTo(x.buf, quad, width)
		packKeysNEONBF16(&x.values[q*quad*width], &four.rows[0], width, width, 1)
	}
}

// processKeys adds the keys [from, from+keys) to the sums of tile t. If edge is true, the band may
// hide some of these keys from some row. If hidden is true, the mask may hide some.
func (x *quadScratch) processKeys(j *job, t *quadTile, from, keys int, edge, hidden bool) {
	vdim, lanes, masked := j.p.VDim, neonLanes.lanes, edge || hidden
	x.setMasks(&t.laneTile, from, keys, edge, hidden)
	top, step := x.beginScores(&t.laneTile, keys, masked)
	for i := 0; i < keys; i += step {
		n := min(step, keys-i)
		scoresNEONBF16(&x.s[i*lanes], &x.keys.rows[(from+i-x.lo)*x.keys.step], x.keys.step, &t.queries[0], x.keys.dim, n, top)
		neonLanes.endScores(j, &t.laneTile, &x.laneScratch, from, i, n, masked)
	}
	expScoresNEON(&x.s[0], keys, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	neonLanes.drop(j, &t.laneTile, &x.laneScratch, from, keys)
	if masked {
		v, step := neonLanes.viewKeys(j, &j.args.V, &x.seqTile, from, keys, x.vBuf)
		addValuesNEON(&t.o[0], &v[0], step, &x.s[0], keys, vdim, t.alpha(x.factors), &x.masks[0])
		return
	}
	quads, width := ceilDiv(keys, quad), upToQuads(vdim)
	clear(x.s[keys*lanes : quads*quad*lanes])
	packWeightsNEONBF16(&x.weights[0], &x.s[0], quads)
	addValuesNEONBF16(&t.o[0], &x.values[(from-x.base)*width], quad*width, &x.weights[0], quads, (vdim+1)&^1, t.alpha(x.factors))
}
