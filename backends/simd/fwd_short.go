//go:build (amd64 || arm64) && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// If the keys that a tile sees are neighbors in one block, the routine attendTile computes the whole
// tile. The results of attendTile equal, bit for bit, the results of the
// separate routines. So a short sequence has the same bits in any batch.

const fetchKeys = 64 // keys below which the prefetches of attendTile are too few for Q and O

// isShort reports whether all keys of an item are in one block, and attendTile supports the call.
func (isa *laneRoutines) isShort(j *job, at *laneRange) bool {
	return at.first < at.last && isa.blockEnd(at, at.first) == at.last && isa.takesWhole(&j.plan)
}

// fwdShort computes the tiles of an item one after the other. For a tile that attendTile cannot
// compute, fwdShort uses the separate routines, with t as scratch.
func (isa *laneRoutines) fwdShort(j *job, ws *pool.Arena, x *laneScratch, at *laneRange, t *laneTile) {
	isa.loadBlock(j, x, at, at.first)
	isa.fetchNextBlock(j, &x.ahead, at, at.last)
	free := ws.Free
	for r := at.from; r < at.to; r += isa.lanes {
		if j.Canceled() {
			return
		}
		ws.Free = free
		n := min(isa.lanes, at.to-r)
		if from, to, edge := x.wholeKeys(at, r, n); from < to && !(edge && isa.hidesWild(j, x, &at.seqTile, r, n, from, to)) {
			isa.wholeTile(j, ws, x, &at.seqTile, r, n, from, to, edge)
			continue
		}
		*t = laneTile{}
		isa.beginTile(j, ws, t, x, &at.seqTile, r, n)
		isa.accumulate(j, t, x)
		isa.finish(j, t, x)
	}
	j.clearRows(&at.seqTile)
}

// hidesWild reports whether V may have NaN or infinity, in those keys [from, to) that the band hides
// from some of the rows [r, r+n).
func (isa *laneRoutines) hidesWild(j *job, x *laneScratch, seq *seqTile, r, n, from, to int) bool {
	allFrom, allUntil := seq.allSee(r, n, from, to)
	wild := func(from, to int) bool {
		return from < to && !isa.finite(x.v[(from-x.lo)*x.vStep:], x.vStep, to-from, j.p.VDim, x.factors)
	}
	return wild(from, allFrom) || wild(allUntil, to)
}

// wholeKeys returns the range [from, to) of keys of the block that rows [r, r+n) see. edge reports
// whether the band hides some of these keys from some of the rows. The range is empty if the mask
// differs between rows, if the visible keys are not contiguous, or if mask and band both hide keys.
func (x *laneScratch) wholeKeys(at *laneRange, r, n int) (from, to int, edge bool) {
	first, allUntil := at.Keys(r)
	allFrom, last := at.Keys(r + n - 1)
	from, to = max(x.lo, first), min(x.hi, last)
	edge = allFrom > from || allUntil < to
	if x.mask.ofRows || edge && x.mask.ofKeys {
		return 0, 0, false
	}
	if !x.mask.ofKeys || from >= to {
		return from, to, edge
	}
	until, hides := x.mask.part(from, to)
	if hides == hidesAll && until < to {
		from = until
		until, hides = x.mask.part(from, to)
	}
	if hides != hidesNothing {
		return 0, 0, false
	}
	if until < to {
		if end, hides := x.mask.part(until, to); hides != hidesAll || end < to {
			return 0, 0, false
		}
	}
	return from, until, false
}

// wholeTile computes query rows [r, r+n), which see keys [from, to) of the block and no others. If
// edge is set, the band hides some of these keys from some of the rows.
func (isa *laneRoutines) wholeTile(j *job, ws *pool.Arena, x *laneScratch, seq *seqTile, r, n, from, to int, edge bool) {
	var masks *uint32
	if edge {
		x.setBand(seq, r, n, from, to-from)
		masks = &x.masks[0]
	}
	padded, vdim, row := pad(j.p.Dim), j.p.VDim, seq.Q0+r
	queries, totals := ws.Take(isa.lanes*padded), ws.Take(4*isa.lanes)
	q, qStep := isa.queryRows(x.rows, &j.args.Q, seq.QBatch, seq.h, row, n)
	o := &j.args.O
	direct, rows, step := o.DType() == flashkit.Float32, x.rows, vdim
	if direct {
		rows, step = o.Float32s()[o.Offset(seq.QBatch, seq.h, row):], rowStep(o)
		if to-from < fetchKeys {
			isa.fetchOutput(rows, step, n, vdim, o)
		}
	}
	k, v := &x.k[(from-x.lo)*x.kStep], &x.v[(from-x.lo)*x.vStep]
	var bias *float32
	if j.p.Score.Bias {
		isa.loadBias(j, &x.featureScratch, seq, r, n, from, to-from, true)
		isa.fetchBias(j, seq, r, len(x.masks), from, to-from)
		bias = &x.bias[0]
	}
	isa.queryLanes(&queries[0], &q[0], qStep, j.p.Dim, n)
	isa.attendTile(&rows[0], step, &totals[0], k, x.kStep, v, x.vStep, &queries[0], &x.s[0], masks, bias, x.biasStep,
		n, j.p.Dim, vdim, to-from, x.ahead.take(to-from, j.p.Dim, k), j.base2, float32(j.unit), float32(j.scale))
	if bias != nil {
		for i, l := range totals[isa.lanes:][:n] {
			if l == 0 { // no key has a weight, and 0 times a value may be NaN
				clear(rows[i*step:][:vdim])
			}
		}
	}
	if j.p.RowMax {
		j.storeTileMax(seq, r, totals[:n], totals[isa.lanes:])
	}
	if !direct {
		isa.storeRows(o, seq.QBatch, seq.h, row, n, rows, step)
	}
	j.storeLSEs(seq.QBatch, seq.h, row, totals[3*isa.lanes:][:n])
}

// fetchOutput prefetches n rows of o, if o has many elements.
func (isa *laneRoutines) fetchOutput(rows []float32, step, n, vdim int, o *flashkit.Tensor) {
	const small = 1 << 9 // elements of a tile
	if n*vdim >= small && o.Len() >= farOutput {
		isa.fetch((*byte)(unsafe.Pointer(&rows[0])), 4*step, 4*vdim, n)
	}
}

// queryRows returns n rows of Q for queryLanes, in place or as a copy in buf. Elements after a row's last
// column and rows after the last row are readable but undefined: attendTile does not use them.
func (isa *laneRoutines) queryRows(buf []float32, t *flashkit.Tensor, b, h, from, n int) (rows []float32, step int) {
	dim, lanes := t.Shape()[3], isa.lanes
	if 2*n <= lanes {
		lanes /= 2
	}
	if t.DType() == flashkit.Float32 {
		rows, step = t.Float32s()[t.Offset(b, h, from):], rowStep(t)
		if (lanes-1)*step+pad(dim) <= len(rows) {
			return rows, step
		}
	}
	isa.loadRows(buf, dim, t, b, h, from, n)
	return buf, dim
}
