//go:build (amd64 || arm64) && !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// laneRange is the query rows of an item. No row of the item sees a key outside of [first, last).
type laneRange struct {
	seqTile
	first, last int
}

func (j *job) laneRange(item int) (x laneRange) {
	x.findRows(&j.plan, item)
	x.first, x.last = x.keysSeen()
	return x
}

// blockEnd returns the end of the block that contains key k, or x.last if that is less.
func (isa *laneRoutines) blockEnd(x *laneRange, k int) int {
	if x.M <= isa.oneBlock {
		return x.last
	}
	return min(x.last, (k/isa.keys+1)*isa.keys)
}

// laneTile is a tile of query rows, one per lane.
type laneTile struct {
	seq     seqTile   // sequence and head of the tile
	from, n int       // first row and number of rows; lanes n and above are idle
	q       []float32 // [dim][lanes]
	keySum            // sums over the current run of keys
	m       []float32 // [lanes]
	run     int       // keys of a run, 0 if one run has all keys
	past    keySum    // sums over the finished runs, relative to the row maxima pastM
	pastM   []float32
	mass    tileMass
}

// laneScratch is the workspace that the tiles of an item share. It includes the current block of
// keys.
type laneScratch struct {
	lo, hi       int       // the current block is keys [lo, hi)
	k, v         []float32 // rows of K and V of these keys
	kStep, vStep int
	kBuf, vBuf   []float32 // rows of K and V widened to float32, or copied from pages
	finite       bool      // V of the block has no NaN or infinity; checked only if the mask may hide some pairs

	s          []float32 // [keys of a block][lanes]
	masks      []uint32  // [keys of a block]
	rows       []float32 // [lanes][dim], query or output rows
	top        []float32 // [lanes], row maxima that include the keys in progress; after all keys, LSE
	scratchMax []float32 // [lanes], scratch for maxima that are not used; after all keys, factors of O of the earlier calls' keys
	factors    []float32 // [lanes], factors that rescale O; after all keys, factors that finish O
	ahead      ahead
	mass       itemMass
	featureScratch
}

// beginTile initializes the empty tile t for query rows [from, from+n) of seq. It loads and
// transposes Q.
func (isa *laneRoutines) beginTile(j *job, ws *pool.Arena, t *laneTile, x *laneScratch, seq *seqTile, from, n int) {
	t.begin(j, ws, isa, seq, from, n, pad(j.p.VDim), isa.keys)
	t.q = ws.Take(isa.lanes * pad(j.p.Dim))
	isa.transposed(t.q, x.rows, &j.args.Q, seq.QBatch, seq.h, seq.Q0+from, n)
	if x.mass.on {
		t.beginMass(ws, isa.lanes, x.mass.last-x.mass.first)
	}
}

// alpha returns the address of the factors by which addValues multiplies O before it adds values.
// At the first keys of a run, alpha returns nil: addValues then overwrites O.
func (t *laneTile) alpha(factors []float32) *float32 {
	if !t.begun {
		t.begun = true
		return nil
	}
	return &factors[0]
}

// loadBlock makes the block of keys that begins at key lo the current block of x.
func (isa *laneRoutines) loadBlock(j *job, x *laneScratch, at *laneRange, lo int) {
	f, n := j.args, isa.blockEnd(at, lo)-lo
	x.lo, x.hi = lo, lo+n
	if x.mask.hidesBlock(j, isa, &at.seqTile, lo, lo+n) {
		return
	}
	x.k, x.kStep = isa.viewKeys(j, &f.K, &at.seqTile, lo, n, x.kBuf)
	x.v, x.vStep = isa.viewKeys(j, &f.V, &at.seqTile, lo, n, x.vBuf)
	if at.to-at.from >= packTiles*isa.lanes {
		x.k, x.kStep = isa.packed(x.k, x.kStep, n, j.p.Dim, x.kBuf)
		x.v, x.vStep = isa.packed(x.v, x.vStep, n, j.p.VDim, x.vBuf)
	}
	x.finite = isa.checksFinite && x.mask.hides(lo+n) && isa.finite(x.v, x.vStep, n, j.p.VDim, x.factors)
}

const packTiles = 4 // tiles of an item from which a copy of K and V costs less than gaps between rows

// packed returns n rows of dim elements without gaps between them. It copies rows with gaps to buf. A
// projection's output has the heads of a token side by side. So each row of a head is in another page
// of memory, and many rows share few sets of the L1 cache.
func (isa *laneRoutines) packed(rows []float32, step, n, dim int, buf []float32) ([]float32, int) {
	if step == dim || dim%16 != 0 || isa.packRows == nil {
		return rows, step
	}
	isa.packRows(&buf[0], &rows[0], step, dim, n)
	return buf, dim
}

// fetchNextBlock queues prefetches of the item's next block, which begins at key k. If the item has
// no next block, it queues Q and the first block of the item's next head or of the worker's likely next
// item. If at most one block is left, fetchNextBlock also queues the item's rows of O. For small items,
// which finish sooner than prefetches, it does nothing.
func (isa *laneRoutines) fetchNextBlock(j *job, a *ahead, item *laneRange, k int) {
	const small = 1 << 13 // elements
	f, at := j.args, *item
	again := j.hasHead(&at, at.h+1)
	if !again && (at.last-at.first)*(j.p.Dim+j.p.VDim) < small {
		return
	}
	a.clear()
	if at.last-k <= isa.keys {
		a.add(&f.O, at.QBatch, at.h, at.Q0+at.from, at.to-at.from)
	}
	if k == at.last {
		if again {
			at.h++
		} else {
			next, ok := j.Next()
			if !ok {
				return
			}
			at = j.laneRange(next)
			if j.p.Score.Ranges != 0 {
				bounds := j.boundsOf(&at.seqTile, at.h, at.from, min(at.from+1, at.to)) // of one row: a guess
				at.narrow(&bounds)
			}
		}
		k = at.first
		a.add(&f.Q, at.QBatch, at.h, at.Q0+at.from, at.to-at.from)
		g := at.g
		if at.g = at.h / (j.p.Heads / j.p.KVHeads); again && at.g == g {
			return // the next head has the same keys
		}
	}
	if j.p.Page != 0 || k == at.last {
		return // pages are scattered, or the next item sees no key
	}
	n := isa.blockEnd(&at, k) - k
	a.add(&f.V, at.KVBatch, at.g, at.K0+k, n)
	a.add(&f.K, at.KVBatch, at.g, at.K0+k, n)
}

const farOutput = 1 << 20 // elements of O from which rows of Q and O are in memory rather than in caches

// hasHead reports whether head h belongs to an item of several heads, and its query rows are worth a
// prefetch.
func (j *job) hasHead(at *laneRange, h int) bool {
	const small = 1 << 11 // elements
	return (at.to-at.from)*j.p.Dim >= small && h < j.p.Heads && h%j.headsPerItem != 0 && j.args.O.Len() >= farOutput
}

// accumulate adds the current block's keys to the sums of the tile. It cuts the block into parts:
// only parts at the edges of the band, or in which the mask hides some pairs, need masks. If the block
// has all keys of the tile and onePart holds, one part has all of them.
func (isa *laneRoutines) accumulate(j *job, t *laneTile, x *laneScratch) {
	first, allUntil := t.seq.Keys(t.from) // keys of the first row; the next line has the keys of the last row
	allFrom, last := t.seq.Keys(t.from + t.n - 1)
	from, to := max(x.lo, first), min(x.hi, last)
	if x.mask.ofRows && from < to {
		x.mask.read(j, isa, &t.seq, t.from, t.n, from, to)
	}
	for from < to {
		until, masked := to, true
		switch {
		case first >= x.lo && last <= x.hi && !x.mask.asked() && isa.onePart(&j.plan): // all keys at once, as in attendTile
			masked = allFrom > from || allUntil < to
		case allFrom >= allUntil: // no key is visible to all rows
		case from < allFrom:
			until = min(to, allFrom)
		case from < allUntil:
			until, masked = min(to, allUntil), false
		}
		hides := hidesNothing
		if x.mask.asked() {
			until, hides = x.mask.part(from, until)
		}
		if hides == hidesSome && x.mask.alone {
			x.mask.from = from
			j.show(&t.seq, t.from, t.n, x.mask.visible[:until-from], from)
		}
		if hides != hidesAll {
			if x.mass.on {
				x.beginPart(t, isa.lanes, from, until)
			}
			isa.processKeys(j, t, x, from, until-from, masked, hides == hidesSome)
			if x.mass.on {
				x.endPart(t, isa.lanes)
			}
		}
		from = until
	}
}

// processKeys adds the keys [from, from+keys) to the sums of tile t. If edge is true, the band may
// hide some of these keys from some row. If hidden is true, the mask may hide some.
func (isa *laneRoutines) processKeys(j *job, t *laneTile, x *laneScratch, from, keys int, edge, hidden bool) {
	p, at, masked := &j.p, from-x.lo, edge || hidden
	s, v, o := &x.s[0], &x.v[at*x.vStep], &t.o[0]
	x.setMasks(t, from, keys, edge, hidden)
	top, step := x.beginScores(t, keys, masked)
	for i := 0; i < keys; i += step {
		n, k := min(step, keys-i), &x.k[(at+i)*x.kStep]
		isa.scores(&x.s[i*isa.lanes], k, x.kStep, &t.q[0], p.Dim, n, top, x.ahead.take(n, p.Dim, k))
		isa.endScores(j, t, x, from, i, n, masked)
	}
	isa.expScores(s, keys, &t.m[0], &x.top[0], &t.l[0], &x.factors[0], j.base2)
	isa.drop(j, t, x, from, keys)
	var masks *uint32
	if masked && !x.finite {
		masks = &x.masks[0]
	}
	isa.addValues(o, v, x.vStep, s, keys, p.VDim, t.alpha(x.factors), masks)
}

// setMasks sets x.masks for the keys [from, from+keys). Bit r of a key's mask is set if row r of
// the tile sees the key. setMasks applies the band only if edge is true, and the mask only if
// hidden is true. If edge and hidden are false, x.masks is unchanged.
func (x *laneScratch) setMasks(t *laneTile, from, keys int, edge, hidden bool) {
	if hidden {
		copy(x.masks[:keys], x.mask.visible[from-x.mask.from:])
	}
	if !edge {
		return
	}
	if !hidden {
		x.setBand(&t.seq, t.from, t.n, from, keys)
		return
	}
	for c := range keys {
		first, last := t.seq.Queries(from + c)
		x.masks[c] &= laneMask(first-t.from, last-t.from, t.n)
	}
}

// setBand sets x.masks for the keys [from, from+keys) and the n rows from row on, to the bits of the
// rows that see a key.
func (x *laneScratch) setBand(seq *seqTile, row, n, from, keys int) {
	allFrom, allUntil := seq.allSee(row, n, from, from+keys)
	for key := from; key < from+keys; key++ {
		if key == allFrom {
			for ; key < allUntil; key++ {
				x.masks[key-from] = laneMask(0, n, n)
			}
			if key == from+keys {
				return
			}
		}
		first, last := seq.Queries(key)
		x.masks[key-from] = laneMask(first-row, last-row, n)
	}
}

func (isa *laneRoutines) finish(j *job, t *laneTile, x *laneScratch) {
	o, b, h, row := &j.args.O, t.seq.QBatch, t.seq.h, t.seq.Q0+t.from
	isa.endKeys(j, t, x.factors)
	if j.p.RowMax {
		j.storeTileMax(&t.seq, t.from, t.m[:t.n], t.l)
	}
	if j.ends() {
		isa.endTile(j, t, x)
	} else {
		isa.finalizeLSE(&x.top[0], &x.factors[0], &t.m[0], &t.l[0], float32(j.unit))
	}
	if x.mass.on {
		isa.addMass(j, t, x)
	}
	vdim, padded := j.p.VDim, pad(j.p.VDim)
	rows, step := x.rows, padded
	direct := o.DType() == flashkit.Float32 && t.n == isa.lanes && vdim == padded && !j.p.Carry && t.seq.fold == 1
	if direct {
		rows, step = o.Float32s()[o.Offset(b, h, row):], rowStep(o)
	}
	isa.fromLanes(rows, step, t.o, padded, x.factors)
	switch {
	case j.p.Carry:
		isa.storeCarried(j, t, x, padded)
	case t.seq.fold > 1:
		isa.storeFolded(j, t, rows, step, x.top)
		return
	case !direct:
		isa.storeRows(o, b, h, row, t.n, rows, step)
	}
	j.storeLSEs(b, h, row, x.top[:t.n])
}

// storeFolded stores the rows of a tile of folded heads, and their LSE, one head after the other.
func (isa *laneRoutines) storeFolded(j *job, t *laneTile, rows []float32, step int, lse []float32) {
	b, fold := t.seq.QBatch, t.seq.fold
	for i := range min(fold, t.n) {
		h, row := t.seq.place(t.from + i)
		n := ceilDiv(t.n-i, fold)
		isa.storeRows(&j.args.O, b, h, row, n, rows[i*step:], fold*step)
		for r := range n {
			j.storeLSE(b, h, row+r, lse[i+r*fold])
		}
	}
}

// storeTileMax stores the row maxima of a tile that begins at row from. m has the largest score of
// each row, and l the sums of weights, without the sink.
func (j *job) storeTileMax(t *seqTile, from int, m, l []float32) {
	if t.fold == 1 && !j.p.Carry && rowStep(&j.args.RowMax) == 1 {
		to, unit := j.args.RowMax.Float32s()[j.args.RowMax.Offset(t.QBatch, t.h, t.Q0+from):][:len(m)], j.unit
		for i, top := range m {
			to[i] = rowMax(unit*float64(top), l[i])
		}
		return
	}
	for i, top := range m {
		h, row := t.place(from + i)
		j.storeRowMax(t.QBatch, h, row, j.unit*float64(top), l[i])
	}
}

// storeLSEs stores lse as LSE of the rows of head h that begin at row i, if the caller requested
// LSE.
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

// allSee returns the range of those keys [from, to) that the band shows to all rows [r, r+n). If it
// shows none to all rows, the range is empty and begins at to.
func (t *seqTile) allSee(r, n, from, to int) (first, last int) {
	_, allUntil := t.Keys(r)
	allFrom, _ := t.Keys(r + n - 1)
	first, last = max(from, allFrom), min(to, allUntil)
	if first >= last {
		return to, to
	}
	return first, last
}
