//go:build !noasm && !purego

package simd

import (
	"context"
	"time"

	"github.com/flashkit-go/flashkit"
)

// The kernels fwd_avx512 and fwd_avx2 compute what fwd_generic computes, with
// the query rows of a tile in the lanes of two vectors. Then a key is one row of
// everything: S, P [keys][lanes] and O transposed [vdim][lanes] are products of
// broadcast elements of K and V, read as they lie, with vectors of queries;
// maximum and sum need no shuffle. Only the query tile and its output are
// transposed.
//
// An item is up to itemRows rows of one head, whose tiles share each block of
// keys while it is in cache, and share the widening of 16-bit keys. Blocks begin
// at multiples of isa.keys wherever a tile's keys begin, so the bits of a tile do
// not depend on its neighbors in the item.
func (b *Backend) fwdLanes(ctx context.Context, c *flashkit.Call, isa *laneISA, run func(*job, *arena, int)) error {
	j := b.newJob(c)
	isa.plan(j, itemRows)
	work := isa.fwdWork(j)
	return b.do(ctx, j, run, work.items, work.floats)
}

// fwdWork returns the items of a planned job, and what each needs.
func (isa *laneISA) fwdWork(j *job) phase {
	p := &j.p
	dims, widest := pad(p.Dim)+pad(p.VDim), max(pad(p.Dim), pad(p.VDim))
	perTile := isa.lanes*pad(p.Dim) + j.sumFloats(isa.lanes, pad(p.VDim), isa.keys)
	shared := isa.keys*(isa.lanes+1+dims) + isa.lanes*(widest+3)
	return phase{p.Batch * p.Heads * tiles(p.QLen, j.group*isa.lanes), j.group*perTile + shared}
}

const (
	itemRows = 256 // query rows of an item
	maxGroup = 16  // tiles of an item
)

func (isa *laneISA) fwdCost(p flashkit.Problem) time.Duration { return cost(isa.fwdTimes(p)) }

func (isa *laneISA) fwdTimes(p flashkit.Problem) timedPhase {
	j := &job{p: p, workers: workers()}
	isa.plan(j, itemRows)
	return isa.fwdPace.forward(&p, isa.lanes, 1, isa.fwdWork(j).items, j.group*isa.lanes, itemRows)
}

const itemsPerWorker = 8

// plan sets the tiles per item (at most rows query rows), keeping at least
// itemsPerWorker items per worker.
func (isa *laneISA) plan(j *job, rows int) {
	heads := j.p.Batch * j.p.Heads
	j.group = max(1, min(rows/isa.lanes, heads*tiles(j.p.QLen, isa.lanes)/(itemsPerWorker*j.workers)))
	j.planHeads(isa.lanes)
}

// planHeads processes heads in groups, the smallest that give each worker several
// items, so that their keys stay in cache from item to item. Within a group, long
// items come before short ones.
func (j *job) planHeads(lanes int) {
	heads := j.p.Batch * j.p.Heads
	wanted := tiles(itemsPerWorker*j.workers, max(1, tiles(j.p.QLen, j.group*lanes)))
	j.heads = tiles(heads, max(1, heads/wanted)) // in equal parts: a last head alone would leave workers idle
}

// laneItem returns the first row and the head, counted over all batches, of an
// item.
func (j *job) laneItem(item, rows int) (from, head int) {
	heads, perHead := j.p.Batch*j.p.Heads, tiles(j.p.QLen, rows)
	first := item / (j.heads * perHead) * j.heads
	item -= first * perHead
	turns := min(j.heads, heads-first)
	return (perHead - 1 - item/turns) * rows, first + item%turns
}

// A laneRange is the query rows of an item, and the keys of which some row sees each.
type laneRange struct {
	b, h, kvHead int
	from, to     int
	first, last  int
}

func (j *job) laneRange(item, rows int) laneRange {
	p := &j.p
	from, head := j.laneItem(item, rows)
	x := laneRange{b: head / p.Heads, h: head % p.Heads, from: from, to: min(from+rows, p.QLen)}
	x.kvHead = x.h / (p.Heads / p.KVHeads)
	x.first, _ = p.Keys(x.from)
	_, x.last = p.Keys(x.to - 1)
	return x
}

// blockEnd returns the end of the block that key k is in.
func (isa *laneISA) blockEnd(x *laneRange, k int) int { return min(x.last, (k/isa.keys+1)*isa.keys) }

// A laneTile is query rows, one in each lane.
type laneTile struct {
	from, n int       // its rows; lanes from n on are idle
	q       []float32 // [dim][lanes]
	keySum            // of the run at hand
	m       []float32 // [lanes]
	run     int       // keys of a run, 0 if all are one
	past    keySum    // of the runs before, and the maximum that it is relative to
	pastM   []float32
}

// A laneScratch is the workspace that the tiles of an item share.
type laneScratch struct {
	s       []float32 // [keys of a block][lanes]
	masks   []uint32  // [keys of a block]
	k, v    []float32 // a block of keys, if it must be widened
	rows    []float32 // [lanes][dim], query rows or output rows
	top     []float32 // [lanes] each
	hidden  []float32
	factors []float32
	ahead   ahead
}

func (isa *laneISA) fwdItem(j *job, ws *arena, item int) {
	p, f, lanes := &j.p, j.args, isa.lanes
	at := j.laneRange(item, j.group*lanes)
	x := laneScratch{
		s: ws.take(isa.keys * lanes), masks: takeWords(ws, isa.keys),
		k: ws.take(isa.keys * pad(p.Dim)), v: ws.take(isa.keys * pad(p.VDim)),
		rows: ws.take(lanes * max(pad(p.Dim), pad(p.VDim))),
		top:  ws.take(lanes), hidden: ws.take(lanes), factors: ws.take(lanes),
	}
	var group [maxGroup]laneTile
	n := 0
	for r := at.from; r < at.to; r += lanes {
		group[n] = isa.newTile(j, ws, &x, at.b, at.h, r, min(lanes, at.to-r))
		n++
	}
	for lo := at.first; lo < at.last; {
		hi := isa.blockEnd(&at, lo)
		k, kStep := isa.view(&f.K, at.b, at.kvHead, lo, hi-lo, x.k)
		v, vStep := isa.view(&f.V, at.b, at.kvHead, lo, hi-lo, x.v)
		isa.lookAhead(j, &x.ahead, at, hi)
		for t := range n {
			if j.canceled() {
				return
			}
			isa.meet(j, &group[t], x.factors, lo)
			isa.absorb(j, &group[t], &x, k, kStep, v, vStep, lo, hi)
		}
		lo = hi
	}
	for t := range n {
		isa.finish(j, &group[t], &x, at.b, at.h)
	}
}

// lookAhead names what follows the block of keys before k: the item's next block, or
// what is likely the worker's next item; and before the last block the rows of O.
func (isa *laneISA) lookAhead(j *job, a *ahead, at laneRange, k int) {
	f, rows := j.args, j.group*isa.lanes
	a.clear()
	if at.last-k <= isa.keys {
		a.add(&f.O, at.b, at.h, at.from, at.to-at.from)
	}
	if k == at.last {
		next := j.next.Load()
		if next >= j.items {
			return
		}
		at = j.laneRange(int(next), rows)
		k = at.first
		a.add(&f.Q, at.b, at.h, at.from, at.to-at.from)
	}
	n := isa.blockEnd(&at, k) - k
	a.add(&f.V, at.b, at.kvHead, k, n)
	a.add(&f.K, at.b, at.kvHead, k, n)
}

// newTile loads and transposes n query rows.
func (isa *laneISA) newTile(j *job, ws *arena, x *laneScratch, b, h, from, n int) laneTile {
	t := isa.emptyTile(j, ws, from, n, pad(j.p.VDim), isa.keys)
	t.q = ws.take(isa.lanes * pad(j.p.Dim))
	isa.transposed(t.q, x.rows, &j.args.Q, b, h, from, n)
	return t
}

// alpha returns what addValues multiplies O with: the factors, or nil the first time.
func (t *laneTile) alpha(factors []float32) *float32 {
	if !t.begun {
		t.begun = true
		return nil
	}
	return &factors[0]
}

// absorb takes the keys [lo, hi), which begin at k and v, into the tile. Of
// those at the edges of the band some rows do not see.
func (isa *laneISA) absorb(j *job, t *laneTile, x *laneScratch, k []float32, kStep int, v []float32, vStep, lo, hi int) {
	p := &j.p
	first, allUntil := p.Keys(t.from) // of the first row, and of the last one
	allFrom, last := p.Keys(t.from + t.n - 1)
	from, to := max(lo, first), min(hi, last)
	for from < to {
		until, masked := to, true
		switch {
		case allFrom >= allUntil: // no key that all rows see
		case from < allFrom:
			until = min(to, allFrom)
		case from < allUntil:
			until, masked = min(to, allUntil), false
		}
		isa.absorbPart(j, t, x, &k[(from-lo)*kStep], kStep, &v[(from-lo)*vStep], vStep, from, until-from, masked)
		from = until
	}
}

// absorbPart takes keys into the tile, from a given one on.
func (isa *laneISA) absorbPart(j *job, t *laneTile, x *laneScratch, k *float32, kStep int, v *float32, vStep, from, keys int, masked bool) {
	p := &j.p
	s, q, o, factors := &x.s[0], &t.q[0], &t.o[0], &x.factors[0]
	m, top, l := &t.m[0], &x.top[0], &t.l[0]
	copy(x.top, t.m)
	if !masked {
		isa.scores(s, k, kStep, q, p.Dim, keys, top, x.ahead.take(keys, p.Dim, k))
		isa.weights(s, keys, m, top, l, factors, j.base2)
		isa.addValues(o, v, vStep, s, keys, p.VDim, t.alpha(x.factors))
		return
	}
	x.setMasks(p, t, from, keys)
	isa.scores(s, k, kStep, q, p.Dim, keys, &x.hidden[0], x.ahead.take(keys, p.Dim, k)) // its maximum counts hidden keys
	isa.maskScores(s, &x.masks[0], keys, top)
	isa.weights(s, keys, m, top, l, factors, j.base2)
	isa.addValuesMasked(o, v, vStep, s, keys, p.VDim, t.alpha(x.factors), &x.masks[0])
}

// setMasks sets the masks of keys, from a given one on: the rows of the tile that
// see each.
func (x *laneScratch) setMasks(p *flashkit.Problem, t *laneTile, from, keys int) {
	for c := range keys {
		first, last := p.Queries(from + c)
		x.masks[c] = laneMask(first-t.from, last-t.from, t.n)
	}
}

// finish divides once, transposes back and writes the rows of the tile.
func (isa *laneISA) finish(j *job, t *laneTile, x *laneScratch, b, h int) {
	o := &j.args.O
	isa.endKeys(j, t, x.factors)
	isa.totals(&x.top[0], &x.factors[0], &t.m[0], &t.l[0], float32(j.scale))
	j.storeLSEs(b, h, t.from, x.top[:t.n])
	vdim, padded := j.p.VDim, pad(j.p.VDim)
	rows, step := x.rows, padded
	direct := o.DType() == flashkit.Float32 && t.n == isa.lanes && vdim == padded
	if direct {
		rows, step = o.Float32s()[o.Offset(b, h, t.from):], rowStep(o)
	}
	isa.fromLanes(rows, step, t.o, padded, x.factors)
	if direct {
		return
	}
	isa.storeRows(o, b, h, t.from, t.n, rows, step)
}

// storeLSEs writes the LSE of rows of head h, from row i on, if they are wanted.
func (j *job) storeLSEs(b, h, i int, lse []float32) {
	t := &j.args.LSE
	switch {
	case t.IsZero():
	case rowStep(t) == 1:
		copy(t.Float32s()[t.Offset(b, h, i):], lse)
	default:
		for r, x := range lse {
			j.storeLSE(b, h, i+r, x)
		}
	}
}
