//go:build (amd64 || arm64) && !purego

package simd

import (
	"context"
	"math"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// The kernels bwd_avx512, bwd_avx2 and bwd_neon compute bwd_generic's result with five products
// instead of seven. An item is a block of keys, cut into panels of one key per lane. The item writes
// dK and dV of its keys. It visits the tiles of query rows that see these keys, from the last tile
// down:
//
//	for each panel:
//		S  = Q Kᵀ; dP = dO Vᵀ                  [rows][lanes], keys in the lanes
//		P  = exp(scale * S - LSE)
//		dS = scale * P (dP - delta)
//		dV += Pᵀ dO; dK += dSᵀ Q               columns in the lanes
//	dQ += dS K                                 columns in the lanes
//
// K and V of a block are transposed once; all other operands are read in place.
//
// The blocks of one head form one or several chains. The blocks of a chain add to the same dQ in
// the order of the keys. The previous block of the chain is called the predecessor. A block adds to
// dQ of a tile only after its predecessor has added to dQ of the tile. So nothing is added
// atomically, and the bits do not depend on the workers. Workers take blocks in order, hence the
// first unfinished block never waits. Under a causal mask, a block is visible to fewer rows than
// its predecessor, but the last tile of rows sees both blocks. So blocks begin with the last tile,
// where the predecessor has begun earlier. A chain advances at the pace of its slowest worker, so a
// problem of few heads has several chains per head.
//
// The causal mask or the sliding window is called the band. At the edges of the band, products are
// cut into groups of edgeGroup rows. The product of a group takes the keys that some row of the
// group sees. Where a row of the group does not see a key, P and dS are 0. If an operand has NaN or
// infinity, the groups are single rows, because 0 times NaN is NaN.
//
// LSE and delta take two floats of workspace per row. If the tensor dQ is float32, this tensor
// holds the first chain's sum. Each other chain's sum needs float32 workspace of the size of dQ.

// backward returns the Run function of a kernel that prepares tiles of query rows, computes blocks
// of keys, and finishes the tiles. If the plan is joined, an item of the blocks does all three for its
// heads, so the second and third step find the tiles in cache.
func (isa *laneRoutines) backward(prepare, block, finish func(*job, *pool.Arena, int)) func(context.Context, *job) {
	seen := func(j *job, ws *pool.Arena, item int) {
		if j.joined {
			j.eachTile(ws, item, prepare)
		}
		if !j.clearUnseen(item) {
			block(j, ws, item)
		}
		if j.joined && isa.copies(&j.plan) > 0 {
			j.eachTile(ws, item, finish)
		}
	}
	return func(ctx context.Context, j *job) {
		tiles, blocks := j.work[0], j.work[1]
		j.cutBlocks()
		j.Shared.Reserve(j.plan.shared)
		if len(j.progress) < j.counters {
			j.progress = make([]atomic.Int64, j.counters)
		}
		for i := range j.counters {
			j.progress[i].Store(0)
		}
		if j.joined {
			tiles.Items = 0
		}
		j.Hold(j.workers, tiles, blocks)
		j.parallel(ctx, prepare, tiles)
		j.beginDBias(ctx)
		j.parallel(ctx, seen, blocks)
		j.endDBias(ctx)
		isa.storeDSink(j)
		if isa.copies(&j.plan) > 0 {
			j.parallel(ctx, finish, pool.Phase{Items: tiles.Items})
		}
	}
}

// eachTile calls run for each tile of query rows of the item's KV head.
func (j *job) eachTile(ws *pool.Arena, item int, run func(*job, *pool.Arena, int)) {
	b, g, _ := j.byKey.Find(item)
	group, tiles := j.p.Heads/j.p.KVHeads, tilesOf(j.call.Seq(b).N, j.rowRoom(j.call.Seq(b).N), j.rows)
	first := j.byRow.Index(b, g*group, 0)
	for i := range group * tiles {
		if j.Canceled() {
			return
		}
		ws.Reset()
		run(j, ws, first+i)
	}
	ws.Reset()
}

// clearUnseen reports whether no row sees a key of the item's block. It then zeros dK and dV of the
// keys, and loads nothing. It leaves blocks with a bias alone, since these write dBias, too.
func (j *job) clearUnseen(item int) bool {
	var x seqTile
	x.findKeys(&j.plan, item)
	if first, end := j.visited(&x); first < end || j.p.Score.Bias {
		return false
	}
	j.clearKeys(&x, x.from, x.to)
	j.clearGradKeys(&x)
	j.progress[item].Store(math.MaxInt64)
	return true
}

// clearKeys zeros dK and dV of the sequence's keys [from, to).
func (j *job) clearKeys(x *seqTile, from, to int) {
	clearRows(&j.args.DK, x.KVBatch, x.g, x.K0+from, x.K0+to)
	clearRows(&j.args.DV, x.KVBatch, x.g, x.K0+from, x.K0+to)
}

// bwdPrepare sets the tileStats of a tile of query rows, and sets the sums of dQ of the tile to 0.
func (isa *laneRoutines) bwdPrepare(j *job, ws *pool.Arena, item int) {
	p, f, lanes := &j.p, j.args, isa.lanes
	var y seqTile
	t := y.findRows(&j.plan, item)
	x := isa.stats(j, y.b, y.h, t)
	isa.clearSums(j, &x, &y, t)
	do, o := ws.Take(lanes*pad(p.VDim)), ws.Take(lanes*pad(p.VDim))
	buf, sums := ws.Take(lanes*max(pad(p.Dim), pad(p.VDim))), ws.Take(lanes)
	x.nonFinite[0] = 0
	if p.Score.Ranges != 0 {
		x.setBounds(j, &y)
	}
	for r := y.from; r < y.to; r += lanes {
		n, at, row := min(lanes, y.to-r), r-y.from, y.Q0+r
		isa.panel(do, buf, &f.DO, y.QBatch, y.h, row, n)
		isa.panel(o, buf, &f.O, y.QBatch, y.h, row, n)
		isa.dots(&x.delta[at], &do[0], &o[0], p.VDim)
		j.takeDLSE(x.delta[at:], y.QBatch, y.h, row, n)
		j.takeLSE(x.lse[at:], y.QBatch, y.h, row, n)
		if p.Band == (flashkit.Band{}) && !j.hidesByRow() {
			continue // no pair is hidden: nonFinite is not read
		}
		if isa.nonFiniteRows(&f.Q, y.QBatch, y.h, row, n, buf, sums) || isa.nonFinite(do, p.VDim, sums) {
			x.nonFinite[0] = 1
		}
	}
	j.sumDSink(&x, &y)
	j.clearGradRows(&y)
}

type keyBlock struct {
	keyRange
	gradSum
	k         []float32 // K of the block, not transposed
	kStep     int
	kT, vT    []float32 // [panels][padded dim][lanes]
	nonFinite bool      // some element of K may be NaN or infinite
	q, do     []float32 // copies of Q and dO of a tile, unless they are read in place
	s, dp     []float32 // [rows][lanes]
	ds        []float32 // [rows][dsStep]
	masks     []uint32  // [rows], a bit for each key of a panel that the row sees
	mask      rowMask
	finiteQ   []float32 // Q and dO of a tile with 0 for NaN and infinity
	finiteDO  []float32
	row       []float32 // one row of any tensor
	cleared   bool      // k has 0 for NaN and infinity
	top       []float32 // [lanes], scratch for row maxima
	score     gradScore
	ahead     ahead
}

// newBlock loads the keys of an item. by is the factor of dS in a call with score features or dropout.
func (isa *laneRoutines) newBlock(j *job, ws *pool.Arena, item int, by float64) keyBlock {
	p, f, lanes := &j.p, j.args, isa.lanes
	dim, vdim := pad(p.Dim), pad(p.VDim)
	r := keyRange{predecessor: -1}
	r.findKeys(&j.plan, item)
	x := keyBlock{
		keyRange: r,
		gradSum:  j.newGradSum(ws, isa.width(p.Dim), isa.width(p.VDim), &r), // [keys][width]
		kT:       ws.Take(j.keys * dim), vT: ws.Take(j.keys * vdim),
		q: ws.Take(j.rows * dim), do: ws.Take(j.rows * vdim),
		s: ws.Take(j.rows * lanes), dp: ws.Take(j.rows * lanes), ds: ws.Take(j.rows * dsStep(&j.plan)),
		masks: takeWords(ws, j.rows), top: ws.Take(lanes), score: isa.newGradScore(j, ws, by),
	}
	if j.hidesByRow() {
		x.mask, x.row = isa.newRowMask(j, ws), ws.Take(max(dim, vdim))
		x.finiteQ, x.finiteDO = ws.Take(j.rows*dim), ws.Take(j.rows*vdim)
	}
	rows := ws.Take(j.keys * dim)
	x.k, x.kStep = isa.rows(&f.K, x.KVBatch, x.g, x.K0+x.from, x.to-x.from, isa.width(j.p.Dim), rows)
	buf := ws.Take(lanes * max(dim, vdim))
	for k := x.from; k < x.to; k += lanes {
		n, panel := min(lanes, x.to-k), x.kT[(k-x.from)*dim:]
		if at := (k - x.from) * x.kStep; isa.direct(&f.K) {
			isa.panel(panel, buf, &f.K, x.KVBatch, x.g, x.K0+k, n)
		} else {
			isa.panelOf(panel, x.k[at:], x.kStep, p.Dim, n)
		}
		isa.panel(x.vT[(k-x.from)*vdim:], buf, &f.V, x.KVBatch, x.g, x.K0+k, n)
		x.nonFinite = x.nonFinite || isa.nonFinite(panel, p.Dim, x.top)
	}
	if x.cleared = x.nonFinite && j.hidesByRow(); x.cleared {
		x.k, x.kStep = isa.finiteRows(rows, &f.K, x.KVBatch, x.g, x.K0+x.from, x.to-x.from)
	}
	return x
}

func (isa *laneRoutines) bwdBlock(j *job, ws *pool.Arena, item int) {
	x := isa.newBlock(j, ws, item, j.scale)
	x.score.parts = ceilDiv(j.rows, fetchRows)
	isa.walk(j, &x.keyRange, &x.gradSum, &x.score, item, func(h, t int, at int64) { isa.addTile(j, &x, item, h, t, at) })
	isa.storeBlock(j, &x)
}

// walk calls the function add for each tile t of query rows of head h that sees keys of the block.
// All blocks visit tiles in the same order, and at is the tile's index in this order.
func (isa *laneRoutines) walk(j *job, x *keyRange, sum *gradSum, score *gradScore, item int, add func(h, t int, at int64)) {
	first, end := j.visited(&x.seqTile)
	group, tilesFirst := j.p.Heads/j.p.KVHeads, j.tilesFirst()
	rows := min(j.rows, upToTiles(x.N)) // rows of a tile, whatever the other sequences' lengths
	visit := func(c, t int) {
		h, at := x.g*group+c, j.place(x.N, c, t)
		if t == end-1 && !(tilesFirst && c > 0) {
			if x.predecessor = j.predecessor(x, item); !tilesFirst {
				x.predecessor = j.predecessorOf(x, item, h)
			}
			j.progress[item].Store(int64(at))
		}
		isa.flushRowRun(sum, at*rows)
		add(h, t, int64(at))
		score.endTile(j, x, item, c, t, int64(at))
	}
	for t := end - 1; tilesFirst && t >= first && !j.Canceled(); t-- {
		for c := range group {
			visit(c, t)
		}
	}
	c0 := 0
	if x.N == 0 && score.db.sharesHeads(j) {
		c0 = group - 1 // without rows, the number of heads is unbounded: do not loop over it
	}
	for c := c0; c < group; c++ {
		h := x.g*group + c
		seen := first < end && !(!tilesFirst && j.skips(&x.seqTile, h, x.from))
		for t := end - 1; !tilesFirst && seen && t >= first && !j.Canceled(); t-- {
			visit(c, t)
		}
		score.endHead(j, x, item, c)
	}
	isa.endRows(sum)
	if !j.Canceled() { // a canceled item must not release its successors: earlier items may still add to dQ
		j.progress[item].Store(math.MaxInt64)
	}
	j.clearGradKeys(&x.seqTile)
}

func (isa *laneRoutines) storeBlock(j *job, x *keyBlock) {
	f, n := j.args, x.to-x.from
	if n > 0 && !j.Canceled() {
		isa.storeRows(&f.DK, x.KVBatch, x.g, x.K0+x.from, n, x.dk, isa.width(j.p.Dim))
		isa.storeRows(&f.DV, x.KVBatch, x.g, x.K0+x.from, n, x.dv, isa.width(j.p.VDim))
	}
}

type rowTile struct {
	tileStats
	h, from, to int
	queryRows
	finite  queryRows // Q and dO, for the products that add to dK and dV
	cleared bool      // finite has 0 for NaN and infinity
	whole   bool      // every row sees every key of the block
	inBand  bool      // the band hides no key of the block from any row; mask and ranges may
	group   int       // rows of a product for dQ, or keys of a product for dK and dV, unless whole
}

type queryRows struct {
	q, do         []float32
	qStep, doStep int
}

// addTile computes P and dS of an item's block of keys and of tile t of query head h. It adds dSᵀ Q
// to dK, Pᵀ dO to dV, and dS K to dQ. at is the tile's index in the order in which all blocks visit
// tiles.
func (isa *laneRoutines) addTile(j *job, x *keyBlock, item, h, t int, at int64) {
	p, f := &j.p, j.args
	from := t * j.rows
	stats := isa.stats(j, x.b, h, t)
	if x.mask.hidesTile(j, &x.keyRange, &stats) {
		isa.skipTile(j, &x.keyRange, &stats, item, h, t, at)
		return
	}
	x.mask.setGroups(j, &x.keyRange, h, from)
	y := rowTile{tileStats: stats, h: h, from: from, to: min(from+j.rows, x.N)}
	_, allUntil := x.Keys(from)
	allFrom, _ := x.Keys(y.to - 1)
	y.whole = x.from >= allFrom && x.to <= allUntil
	y.inBand = y.whole
	if x.mask.ranges {
		y.whole = y.whole && x.mask.bounds.seesAll(x.from, x.to)
	}
	y.q, y.qStep = isa.rows(&f.Q, x.QBatch, h, x.Q0+from, y.to-from, isa.width(j.p.Dim), x.q)
	y.do, y.doStep = isa.rows(&f.DO, x.QBatch, h, x.Q0+from, y.to-from, isa.width(j.p.VDim), x.do)
	isa.setOperands(j, x, &y)
	dq, step := isa.gathered(j, &y.tileStats, &x.seqTile, h, t, j.chain(&x.keyRange))
	before := x.predecessor
	x.score.setTile(j, &x.keyRange, h, from, y.to-from)
	isa.fetchNextTile(j, x, h, t)
	for k := x.from; k < x.to; k += isa.lanes {
		if j.Canceled() {
			return
		}
		if k+isa.lanes >= x.to && step == p.Dim && j.hasPassed(before, at) {
			x.ahead.addFloats(dq[:(y.to-y.from)*step])
		}
		isa.addPanel(j, x, &y, k, min(isa.lanes, x.to-k))
	}
	if !j.waitFor(before, at) {
		return // canceled
	}
	isa.flushKeyRun(j, &y.tileStats, &x.keyRange, h, t)
	group := y.group
	if y.whole {
		group = j.rows
	}
	isa.addRows(j, x, &y, dq, step, x.from, x.to, group)
	isa.addNonFiniteRows(j, x, &y, dq, step)
	j.progress[item].Store(at + 1)
}

// addPanel computes P and dS of tile y for a panel of keys, from key k on. It adds Pᵀ dO and dSᵀ Q to
// dV and dK of these keys.
func (isa *laneRoutines) addPanel(j *job, x *keyBlock, y *rowTile, k, keys int) {
	p, lanes := &j.p, isa.lanes
	lo, hi := isa.seen(j, x, y, k, keys)
	if lo >= hi {
		return
	}
	s, dp := x.s[lo*lanes:], x.dp[lo*lanes:]
	at := k - x.from
	scores := isa.scores
	if isa.scoresNarrow != nil && keys <= lanes/2 {
		scores = isa.scoresNarrow
	}
	x.dots(scores, s, y.q[lo*y.qStep:], y.qStep, x.kT[at*pad(p.Dim):], p.Dim, hi-lo)
	x.dots(scores, dp, y.do[lo*y.doStep:], y.doStep, x.vT[at*pad(p.VDim):], p.VDim, hi-lo)
	if ds := x.ds[lo*dsStep(&j.plan)+at:]; x.score.on {
		x.score.gradients(j, &x.keyRange, k, lo, hi-lo, s, dp, ds, dsStep(&j.plan), x.masks[lo:], y.lse[lo:], y.delta[lo:])
	} else {
		isa.gradients(&s[0], &dp[0], &ds[0], dsStep(&j.plan), &x.masks[lo], hi-lo, &y.lse[lo], &y.delta[lo], float32(j.scale))
	}
	group := y.group
	if y.inBand {
		group = lanes
	}
	isa.addKeys(j, x, y, k, keys, group, lo, hi)
	isa.addNonFiniteKeys(j, x, y, k, lo, hi)
}

// bwdFinish adds the sums of the chains and writes dQ of a tile of query rows.
func (isa *laneRoutines) bwdFinish(j *job, _ *pool.Arena, item int) {
	var y seqTile
	t := y.findRows(&j.plan, item)
	x := isa.stats(j, y.b, y.h, t)
	isa.addChains(j, &x, &y, t)
	isa.storeSums(j, &x, &y)
}
