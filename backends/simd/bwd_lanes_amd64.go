//go:build !noasm && !purego

package simd

import (
	"context"
	"math"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// The kernels bwd_avx512 and bwd_avx2 compute what bwd_generic computes, with
// five products instead of seven. An item is a block of keys. It owns their dK
// and dV and walks the tiles of query rows that see them, from the last one down:
//
//	S  = K Qᵀ; dP = V dOᵀ        [keys][lanes], queries in the lanes
//	P  = exp(scale * S - LSE); dS = P (dP - delta)
//	dV += P dO; dK += dS Q       columns in the lanes
//	dQᵀ += Kᵀ dS                 queries in the lanes
//
// and multiplies dK and dQ with the scale at the end.
//
// All blocks of a head add to the same dQ. They do so in the order of the keys:
// a block adds to a tile only after the block before it has passed that tile.
// So nothing is added atomically, and the bits are those of one worker. Blocks
// are taken in order, hence the lowest one never waits, and walking down keeps a
// causal block behind the one before it, which has more rows to walk.
//
// dQ is kept transposed in float32 until all blocks are done. That workspace
// has the size of Q; LSE and delta take two floats for each row.
func (b *Backend) bwdLanes(ctx context.Context, p flashkit.Problem, f *flashkit.Backward, isa *laneISA, prepare, block, finish func(*job, *arena, int)) error {
	j := b.newJob(p)
	j.bwd = *f
	lanes := isa.lanes
	queryTiles := p.Batch * p.Heads * tiles(p.QLen, lanes)
	j.planBlocks()
	blocks := p.Batch * p.KVHeads * tiles(p.KVLen, j.keys)
	j.shared.reserve(queryTiles * (2*lanes + lanes*pad(p.Dim)))
	if len(j.passed) < blocks {
		j.passed = make([]atomic.Int64, blocks)
	}
	for i := range blocks {
		j.passed[i].Store(0)
	}
	rows := lanes * (pad(p.Dim) + pad(p.VDim))
	j.parallel(ctx, prepare, queryTiles, 3*lanes*pad(p.VDim))
	j.parallel(ctx, block, blocks, 2*rows+2*j.keys*(lanes+pad(p.Dim)+pad(p.VDim))+j.keys+lanes)
	j.parallel(ctx, finish, queryTiles, rows+lanes)
	return b.release(ctx, j)
}

// bwdBlockK is the keys of a block: their dK and dV stay in the second-level cache.
const bwdBlockK = 128

// planBlocks halves the blocks where there are few for each worker. It does not
// change the bits: every sum still goes over keys or rows in the same order.
func (j *job) planBlocks() {
	j.keys = bwdBlockK
	if j.workers > 1 && j.p.Batch*j.p.KVHeads*tiles(j.p.KVLen, bwdBlockK) < 8*j.workers {
		j.keys /= 2
	}
}

func (isa *laneISA) bwdCost(p flashkit.Problem) time.Duration {
	return cost(p.FLOPs(flashkit.PassBackward), isa.rate, p.Batch*p.KVHeads*tiles(p.KVLen, bwdBlockK))
}

// A rowStats is what the backward pass keeps of a tile of query rows.
type rowStats struct {
	lse   []float32 // [lanes]; the largest float32 where a row has no weight anywhere
	delta []float32 // [lanes], dO·O - dLSE
	dq    []float32 // [dim][lanes]
}

// stats returns the place of tile t of query head h.
func (isa *laneISA) stats(j *job, b, h, t int) rowStats {
	p, lanes := &j.p, isa.lanes
	size := 2*lanes + lanes*pad(p.Dim)
	x := j.shared.all[((b*p.Heads+h)*tiles(p.QLen, lanes)+t)*size:][:size]
	return rowStats{x[:lanes], x[lanes : 2*lanes], x[2*lanes:]}
}

// bwdPrepare sets the stats of one tile of query rows.
func (isa *laneISA) bwdPrepare(j *job, ws *arena, item int) {
	p, f, lanes := &j.p, &j.bwd, isa.lanes
	n := tiles(p.QLen, lanes)
	b, h, t := item/n/p.Heads, item/n%p.Heads, item%n
	x := isa.stats(j, b, h, t)
	clear(x.dq)
	size, rows := lanes*pad(p.VDim), min(lanes, p.QLen-t*lanes)
	do, o, buf := ws.take(size), ws.take(size), ws.take(size)
	isa.queries(do, buf, &f.DO, b, h, t*lanes, rows)
	isa.queries(o, buf, &f.O, b, h, t*lanes, rows)
	isa.dots(&x.delta[0], &do[0], &o[0], p.VDim)
	for i := range lanes {
		x.lse[i] = math.MaxFloat32
		if i >= rows {
			continue
		}
		if lse := f.LSE.Float32s()[f.LSE.Offset(b, h, t*lanes+i)]; !math.IsInf(float64(lse), -1) {
			x.lse[i] = lse
		}
		if !f.DLSE.IsZero() {
			x.delta[i] -= f.DLSE.Float32s()[f.DLSE.Offset(b, h, t*lanes+i)]
		}
	}
}

// A keyBlock is the workspace and the state of one item.
type keyBlock struct {
	b, g, from, to int
	k, v           []float32 // its keys and values
	kStep, vStep   int
	dk, dv         []float32 // [keys][padded dim]
	s, dp          []float32 // [keys][lanes]
	masks          []uint32
	q, do          []float32 // a tile, [dim][lanes]
	qRows, doRows  []float32 // the tile as rows, if they cannot be read where they lie
	hidden         []float32
}

// bwdBlock writes dK and dV of a block of keys and adds its part of dQ.
func (isa *laneISA) bwdBlock(j *job, ws *arena, item int) {
	p, f, lanes := &j.p, &j.bwd, isa.lanes
	heads := p.Batch * p.KVHeads
	from := item / heads * j.keys
	x := keyBlock{b: item % heads / p.KVHeads, g: item % p.KVHeads, from: from, to: min(from+j.keys, p.KVLen),
		masks: takeWords(ws, j.keys)}
	keys := x.to - x.from
	x.k, x.kStep = isa.view(&f.K, x.b, x.g, from, keys, ws.take(j.keys*pad(p.Dim)))
	x.v, x.vStep = isa.view(&f.V, x.b, x.g, from, keys, ws.take(j.keys*pad(p.VDim)))
	x.dk, x.dv = ws.take(keys*pad(p.Dim)), ws.take(keys*pad(p.VDim))
	clear(x.dk)
	clear(x.dv)
	x.s, x.dp = ws.take(j.keys*lanes), ws.take(j.keys*lanes)
	x.q, x.do = ws.take(lanes*pad(p.Dim)), ws.take(lanes*pad(p.VDim))
	x.qRows, x.doRows = ws.take(lanes*pad(p.Dim)), ws.take(lanes*pad(p.VDim))
	x.hidden = ws.take(lanes)

	first, _ := p.Queries(from)
	_, last := p.Queries(x.to - 1)
	group, perHead := p.Heads/p.KVHeads, tiles(p.QLen, lanes)
	for c := range group {
		if first >= last {
			break
		}
		top := (last - 1) / lanes
		j.passed[item].Store(int64(c*perHead + perHead - 1 - top))
		for t := top; t >= first/lanes && !j.canceled(); t-- {
			isa.addTile(j, &x, item, x.g*group+c, t, int64(c*perHead+perHead-1-t))
		}
	}
	j.passed[item].Store(math.MaxInt64)
	scale(x.dk, float32(j.scale))
	for r := range keys {
		isa.store(&f.DK, f.DK.Offset(x.b, x.g, from+r), x.dk[r*pad(p.Dim):][:p.Dim])
		isa.store(&f.DV, f.DV.Offset(x.b, x.g, from+r), x.dv[r*pad(p.VDim):][:p.VDim])
	}
}

// addTile takes tile t of query head h into the block of an item. at is the
// tile's place in the order of all blocks.
func (isa *laneISA) addTile(j *job, x *keyBlock, item, h, t int, at int64) {
	p, f, lanes := &j.p, &j.bwd, isa.lanes
	from := t * lanes
	n := min(lanes, p.QLen-from)
	lo, allUntil := p.Keys(from)
	allFrom, hi := p.Keys(from + n - 1)
	lo, hi = max(lo, x.from), min(hi, x.to)
	if lo >= hi {
		return
	}
	keys, skip := hi-lo, lo-x.from
	whole := lo >= allFrom && hi <= allUntil
	for c := range keys {
		x.masks[c] = math.MaxUint32
		if !whole {
			from, to := p.Queries(lo + c)
			x.masks[c] = laneMask(from-t*lanes, to-t*lanes, n)
		}
	}
	stats := isa.stats(j, x.b, h, t)
	qRows, qStep := isa.queries(x.q, x.qRows, &f.Q, x.b, h, from, n)
	doRows, doStep := isa.queries(x.do, x.doRows, &f.DO, x.b, h, from, n)
	k, v := &x.k[skip*x.kStep], &x.v[skip*x.vStep]

	isa.scores(&x.s[0], k, x.kStep, &x.q[0], p.Dim, keys, &x.hidden[0])
	isa.scores(&x.dp[0], v, x.vStep, &x.do[0], p.VDim, keys, &x.hidden[0])
	isa.gradients(&x.s[0], &x.dp[0], &x.masks[0], keys, &stats.lse[0], &stats.delta[0], float32(j.scale))
	if whole || finite(qRows, qStep, n, p.Dim) && finite(doRows, doStep, n, p.VDim) {
		isa.outerAll(x.dv[skip*pad(p.VDim):], x.s, doRows, doStep, keys, n, p.VDim)
		isa.outerAll(x.dk[skip*pad(p.Dim):], x.dp, qRows, qStep, keys, n, p.Dim)
	} else {
		isa.outerSeen(x.dv[skip*pad(p.VDim):], x.s, doRows, doStep, x.masks[:keys], p.VDim)
		isa.outerSeen(x.dk[skip*pad(p.Dim):], x.dp, qRows, qStep, x.masks[:keys], p.Dim)
	}

	if !j.waitFor(item-p.Batch*p.KVHeads, at) {
		return // canceled
	}
	if whole {
		isa.addValues(&stats.dq[0], k, x.kStep, &x.dp[0], keys, p.Dim, &ones[0])
	} else {
		isa.addValuesMasked(&stats.dq[0], k, x.kStep, &x.dp[0], keys, p.Dim, &ones[0], &x.masks[0])
	}
	j.passed[item].Store(at + 1)
}

// waitFor returns when the item before in the order of keys has passed the
// place at, or false when the call is canceled. The first block of a head has
// none before it.
func (j *job) waitFor(before int, at int64) bool {
	if before < 0 {
		return true
	}
	const spin, yield = 1 << 10, 1 << 7 // a block is rarely far behind; then others may need the processor
	for polls := 0; j.passed[before].Load() <= at; polls++ {
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

// outerAll adds the product of a, [keys][lanes], and n rows of B to c,
// [keys][padded dim], as many columns at a time as there are lanes.
func (isa *laneISA) outerAll(c, a, b []float32, bStep, keys, n, dim int) {
	for x := 0; x < dim; x += isa.lanes {
		isa.outer(&c[x], pad(dim), &a[0], &b[x], bStep, keys, n, laneMask(0, isa.lanes, dim-x))
	}
}

// outerSeen is outerAll for rows that hold NaN or an infinity: it multiplies no
// row with a key that the row does not see, not even with a weight of 0.
func (isa *laneISA) outerSeen(c, a, b []float32, bStep int, masks []uint32, dim int) {
	for r, mask := range masks {
		if mask == 0 {
			continue
		}
		from := bits.TrailingZeros32(mask)
		for x := 0; x < dim; x += isa.lanes {
			isa.outer(&c[r*pad(dim)+x], pad(dim), &a[r*isa.lanes+from], &b[from*bStep+x], bStep, 1, bits.OnesCount32(mask), laneMask(0, isa.lanes, dim-x))
		}
	}
}

// finite reports whether n rows of dim elements hold neither NaN nor infinity.
func finite(rows []float32, step, n, dim int) bool {
	var sum float32
	for r := range n {
		for _, x := range rows[r*step:][:dim] {
			sum += x * 0 // NaN if x is not finite
		}
	}
	return sum == 0
}

// bwdFinish writes dQ of one tile of query rows.
func (isa *laneISA) bwdFinish(j *job, ws *arena, item int) {
	p, f, lanes := &j.p, &j.bwd, isa.lanes
	count := tiles(p.QLen, lanes)
	b, h, t := item/count/p.Heads, item/count%p.Heads, item%count
	dim, padded := p.Dim, pad(p.Dim)
	rows, factors := ws.take(lanes*padded), ws.take(lanes)
	for i := range factors {
		factors[i] = float32(j.scale)
	}
	dq := isa.stats(j, b, h, t).dq
	isa.fromLanes(rows, padded, dq, padded, factors)
	for i := range min(lanes, p.QLen-t*lanes) {
		isa.store(&f.DQ, f.DQ.Offset(b, h, t*lanes+i), rows[i*padded:][:dim])
	}
}
