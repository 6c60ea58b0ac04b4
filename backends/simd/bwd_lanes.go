//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// The kernels bwd_avx512 and bwd_avx2 compute what bwd_generic computes, with
// five products instead of seven. An item is a block of keys, cut into panels of
// as many as there are lanes. It owns their dK and dV and walks the tiles of
// query rows that see them, from the last one down:
//
//	for each panel:
//		S  = Q Kᵀ; dP = dO Vᵀ                  [rows][lanes], keys in the lanes
//		P  = exp(scale * S - LSE)
//		dS = scale * P (dP - delta)
//		dV += Pᵀ dO; dK += dSᵀ Q               columns in the lanes
//	dQ += dS K                                 columns in the lanes
//
// Only K and V of a block are transposed, once; all else is read as it lies.
//
// The blocks of a chain add to the same dQ. They do so in the order of the keys:
// a block adds to a tile only after the block before it has passed that tile.
// So nothing is added atomically, and the bits are those of one worker. Blocks
// are taken in order, hence the lowest one never waits, and walking down keeps a
// causal block behind the one before it, which has more rows to walk. A chain goes
// at the pace of its slowest worker, so a problem of few heads has several for each.
//
// At the edges of the band the products are cut into groups of edgeGroup rows,
// each over what some row of it sees; the rest of a group has weight 0. Where an
// operand is NaN or infinite the groups are single rows: 0 times NaN is NaN.
//
// LSE and delta take two floats for each row. The first chain gathers dQ where it
// belongs, if that is float32; every other one in float32 workspace of its size. cut
// sets how many rows are a tile and how many keys a block, and returns what they need.
func (b *Backend) bwdLanes(ctx context.Context, c *flashkit.Call, isa *laneISA, cut func(*plan) (tile, block phase), prepare, block, finish func(*job, *arena, int)) error {
	j := b.newJob(c)
	tile, key := cut(&j.plan)
	j.shared.reserve(tile.items * isa.statsSize(&j.plan))
	if len(j.passed) < key.items {
		j.passed = make([]atomic.Int64, key.items)
	}
	for i := range key.items {
		j.passed[i].Store(0)
	}
	j.hold(tile, key)
	j.parallel(ctx, prepare, tile.items, tile.floats)
	j.parallel(ctx, block, key.items, key.floats)
	if isa.copies(&j.plan) > 0 {
		j.parallel(ctx, finish, tile.items, 0)
	}
	return b.release(ctx, j)
}

// bwdPlan plans the tiles of query rows and the blocks of keys.
func (isa *laneISA) bwdPlan(pl *plan) (tile, block phase) {
	pl.planLanes()
	dim, vdim := pad(pl.p.Dim), pad(pl.p.VDim)
	return pl.bwdPhases(isa.lanes*(dim+2*vdim+max(dim, vdim)+1),
		pl.gradFloats(dim, vdim)+pl.keys*(2*dim+vdim)+pl.rows*(dim+vdim)+isa.lanes*max(dim, vdim)+pl.rows*(2*isa.lanes+dsStep(pl)+1)+isa.lanes)
}

// bwdPhases returns the phases of a planned job whose items need so many floats.
func (pl *plan) bwdPhases(perTile, perBlock int) (tile, block phase) {
	p := &pl.p
	return phase{p.Batch * p.Heads * ceilDiv(p.QLen, pl.rows), perTile}, phase{p.Batch * p.KVHeads * ceilDiv(p.KVLen, pl.keys), perBlock}
}

// dsStep is the distance between rows of dS: no power of two, so that the rows
// of a column do not fall on the same cache lines.
func dsStep(pl *plan) int { return pl.keys + 16 }

func (isa *laneISA) bwdCost(p flashkit.Problem) time.Duration {
	f := isa.bwdTimes(p)
	return cost(f[:]...)
}

func (isa *laneISA) bwdTimes(p flashkit.Problem) [3]timedPhase {
	pl := newPlan(p)
	tile, block := isa.bwdPlan(pl)
	return isa.bwdPace.backward(&p, isa.lanes, edgeGroup, isa.cut(pl, tile, block))
}

// cut returns how a planned job is cut.
func (isa *laneISA) cut(pl *plan, tile, block phase) bwdCut {
	return bwdCut{pl.rows, pl.keys, tile.items, block.items, isa.copies(pl) > 0}
}

// direct reports whether rows of t can take the place of padded float32 rows.
func (isa *laneISA) direct(t *flashkit.Tensor) bool {
	return isa.directRows(t.DType(), t.Shape()[3])
}

func (isa *laneISA) directRows(t flashkit.DType, dim int) bool {
	return t == flashkit.Float32 && (isa.addProductMasked != nil || dim == pad(dim))
}

// rows returns n rows of head h of t, from row r on, as float32. They are in buf
// if they cannot be used where they lie.
func (isa *laneISA) rows(t *flashkit.Tensor, b, h, r, n int, buf []float32) (rows []float32, step int) {
	if isa.direct(t) {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	step = pad(t.Shape()[3])
	isa.loadRows(buf, step, t, b, h, r, n)
	return buf, step
}

// queryTileOf returns the batch, head and number of a tile of query rows.
func (pl *plan) queryTileOf(item int) (b, h, t int) {
	n := ceilDiv(pl.p.QLen, pl.rows)
	return item / n / pl.p.Heads, item / n % pl.p.Heads, item % n
}

// bwdPrepare sets the stats of one tile of query rows, and its dQ to 0.
func (isa *laneISA) bwdPrepare(j *job, ws *arena, item int) {
	p, f, lanes := &j.p, j.args, isa.lanes
	b, h, t := j.queryTileOf(item)
	x := isa.stats(j, b, h, t)
	isa.clearSums(j, &x, b, h, t)
	q, do, o := ws.take(lanes*pad(p.Dim)), ws.take(lanes*pad(p.VDim)), ws.take(lanes*pad(p.VDim))
	buf, sums := ws.take(lanes*max(pad(p.Dim), pad(p.VDim))), ws.take(lanes)
	x.wild[0] = 0
	for r := t * j.rows; r < min((t+1)*j.rows, p.QLen); r += lanes {
		n, at := min(lanes, p.QLen-r), r-t*j.rows
		isa.transposed(do, buf, &f.DO, b, h, r, n)
		isa.transposed(o, buf, &f.O, b, h, r, n)
		isa.dots(&x.delta[at], &do[0], &o[0], p.VDim)
		j.takeDLSE(x.delta[at:], b, h, r, n)
		j.takeLSE(x.lse[at:], b, h, r, n)
		if p.Band == (flashkit.Band{}) {
			continue // no edges, so nobody asks
		}
		isa.transposed(q, buf, &f.Q, b, h, r, n)
		if isa.wild(q, p.Dim, sums) || isa.wild(do, p.VDim, sums) {
			x.wild[0] = 1
		}
	}
}

// wild reports whether x, [dim][lanes], may hold NaN or an infinity: whether the
// square of a lane is neither.
func (isa *laneISA) wild(x []float32, dim int, sums []float32) bool {
	isa.dots(&sums[0], &x[0], &x[0], dim)
	for _, sum := range sums {
		if !(sum <= math.MaxFloat32) {
			return true
		}
	}
	return false
}

// A keyBlock is the workspace and the state of one item.
type keyBlock struct {
	keyRange
	gradSum
	k      []float32 // its keys, as rows
	kStep  int
	kT, vT []float32 // [panels][padded dim][lanes]
	wild   bool      // its keys may hold what is not finite
	q, do  []float32 // a tile of query rows, if they cannot be used where they lie
	s, dp  []float32 // [rows][lanes]
	ds     []float32 // [rows][dsStep]
	masks  []uint32  // [rows]
	top    []float32 // [lanes], of no use
	ahead  ahead
}

// newBlock loads the keys of an item.
func (isa *laneISA) newBlock(j *job, ws *arena, item int) keyBlock {
	p, f, lanes := &j.p, j.args, isa.lanes
	dim, vdim := pad(p.Dim), pad(p.VDim)
	x := keyBlock{
		keyRange: j.keyRangeOf(item),
		gradSum:  j.newGradSum(ws, dim, vdim), // [keys][padded dim]
		kT:       ws.take(j.keys * dim), vT: ws.take(j.keys * vdim),
		q: ws.take(j.rows * dim), do: ws.take(j.rows * vdim),
		s: ws.take(j.rows * lanes), dp: ws.take(j.rows * lanes), ds: ws.take(j.rows * dsStep(&j.plan)),
		masks: takeWords(ws, j.rows), top: ws.take(lanes),
	}
	x.k, x.kStep = isa.rows(&f.K, x.b, x.g, x.from, x.to-x.from, ws.take(j.keys*dim))
	buf := ws.take(lanes * max(dim, vdim))
	for k := x.from; k < x.to; k += lanes {
		n, panel := min(lanes, x.to-k), x.kT[(k-x.from)*dim:]
		isa.transposed(panel, buf, &f.K, x.b, x.g, k, n)
		isa.transposed(x.vT[(k-x.from)*vdim:], buf, &f.V, x.b, x.g, k, n)
		x.wild = x.wild || isa.wild(panel, p.Dim, x.top)
	}
	return x
}

// bwdBlock writes dK and dV of a block of keys and adds its part of dQ.
func (isa *laneISA) bwdBlock(j *job, ws *arena, item int) {
	x := isa.newBlock(j, ws, item)
	isa.walk(j, x.keyRange, &x.gradSum, item, func(h, t int, at int64) { isa.addTile(j, &x, item, h, t, at) })
	isa.storeBlock(j, &x)
}

// walk calls add for the tiles of query rows that see keys of the block, in the
// order of all blocks, of which at is the place.
func (isa *laneISA) walk(j *job, x keyRange, sum *gradSum, item int, add func(h, t int, at int64)) {
	p := &j.p
	first, end := j.visited(x)
	group, perHead := p.Heads/p.KVHeads, ceilDiv(p.QLen, j.rows)
	for c := range group {
		if first == end {
			break
		}
		j.passed[item].Store(int64(c*perHead + perHead - end))
		for t := end - 1; t >= first && !j.canceled(); t-- {
			at := c*perHead + perHead - 1 - t
			isa.meetRow(sum, at*j.rows)
			add(x.g*group+c, t, int64(at))
		}
	}
	isa.endRows(sum)
	j.passed[item].Store(math.MaxInt64)
}

// storeBlock writes dK and dV.
func (isa *laneISA) storeBlock(j *job, x *keyBlock) {
	f, dim, vdim := j.args, pad(j.p.Dim), pad(j.p.VDim)
	for k := x.from; k < x.to && !j.canceled(); k += isa.lanes {
		n, at := min(isa.lanes, x.to-k), k-x.from
		isa.storeRows(&f.DK, x.b, x.g, k, n, x.dk[at*dim:], dim)
		isa.storeRows(&f.DV, x.b, x.g, k, n, x.dv[at*vdim:], vdim)
	}
}

// A rowTile is a tile of query rows on its way through a block of keys.
type rowTile struct {
	tileStats
	from, to      int
	q, do         []float32
	qStep, doStep int
	whole         bool // every row sees every key of the block
	group         int  // rows or keys of a product, where not whole
}

// addTile takes tile t of query head h into the block of an item. at is the
// tile's place in the order of all blocks.
func (isa *laneISA) addTile(j *job, x *keyBlock, item, h, t int, at int64) {
	p, f := &j.p, j.args
	from := t * j.rows
	y := rowTile{tileStats: isa.stats(j, x.b, h, t), from: from, to: min(from+j.rows, p.QLen), group: edgeGroup}
	_, allUntil := p.Keys(from)
	allFrom, _ := p.Keys(y.to - 1)
	y.whole = x.from >= allFrom && x.to <= allUntil
	if y.wild[0] != 0 || x.wild {
		y.group = 1
	}
	y.q, y.qStep = isa.rows(&f.Q, x.b, h, from, y.to-from, x.q)
	y.do, y.doStep = isa.rows(&f.DO, x.b, h, from, y.to-from, x.do)
	dq, step := isa.gathered(j, &y.tileStats, x.b, h, t, j.chain(x.keyRange))
	before := j.before(x.keyRange, item)
	isa.lookBehind(j, x, h, t)
	for k := x.from; k < x.to; k += isa.lanes {
		if j.canceled() {
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
	isa.meetKeys(j, &y.tileStats, x.keyRange, h, t)
	group := y.group
	if y.whole {
		group = j.rows
	}
	isa.addRows(j, x, &y, dq, step, x.from, x.to, group)
	j.passed[item].Store(at + 1)
}

// addPanel computes P and dS of a tile and the keys from k on, and adds to their
// dK and dV.
func (isa *laneISA) addPanel(j *job, x *keyBlock, y *rowTile, k, keys int) {
	p, lanes := &j.p, isa.lanes
	lo, hi := isa.seen(p, x, y, k, keys)
	if lo >= hi {
		return
	}
	s, dp := x.s[lo*lanes:], x.dp[lo*lanes:]
	at := k - x.from
	isa.scores(&s[0], &y.q[lo*y.qStep], y.qStep, &x.kT[at*pad(p.Dim)], p.Dim, hi-lo, &x.top[0], x.ahead.take(hi-lo, p.Dim, &y.q[lo*y.qStep]))
	isa.scoresInParts(&dp[0], &y.do[lo*y.doStep], y.doStep, &x.vT[at*pad(p.VDim)], p.VDim, hi-lo, &x.top[0], x.ahead.take(hi-lo, p.VDim, &y.do[lo*y.doStep]))
	isa.gradients(&s[0], &dp[0], &x.ds[lo*dsStep(&j.plan)+at], dsStep(&j.plan), &x.masks[lo], hi-lo, &y.lse[lo], &y.delta[lo], float32(j.scale))
	group := y.group
	if y.whole {
		group = lanes
	}
	isa.addKeys(j, x, y, k, keys, group)
}

// hasPassed reports whether an item, if there is one, has passed the place at.
func (j *job) hasPassed(item int, at int64) bool { return item < 0 || j.passed[item].Load() > at }

// waitFor returns when the item before in the chain has passed the place at, or
// false when the call is canceled. The first block of a chain has none before it.
func (j *job) waitFor(before int, at int64) bool {
	const spin, yield = 1 << 14, 1 << 14 // a block is rarely far behind; if it is, others may need the processor
	for polls := 0; !j.hasPassed(before, at); polls++ {
		switch {
		case polls < spin:
		case j.canceled():
			return false
		case polls < spin+yield:
			runtime.Gosched()
		default:
			time.Sleep(20 * time.Microsecond)
		}
	}
	return true
}

// bwdFinish adds up and writes dQ of one tile of query rows.
func (isa *laneISA) bwdFinish(j *job, _ *arena, item int) {
	b, h, t := j.queryTileOf(item)
	x := isa.stats(j, b, h, t)
	isa.addChains(j, &x, b, h, t)
	isa.storeSums(j, &x, b, h, t)
}
