//go:build amd64 && !purego

package simd

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// The kernels bwd_fewkeys_avx512 and bwd_fewkeys_avx2 are for few keys and many query rows. With the
// keys in the lanes, as in bwd_avx512, most lanes would be idle. So the query rows are in the lanes, as
// in fwd_avx512, which also determines the order of the sums in S. An item is a chunk of the tiles of
// all query heads that share a KV head. The item visits its tiles in order:
//
//	Sᵀ = K Qᵀ; dPᵀ = V dOᵀ                     [keys][lanes]
//	Pᵀ = exp(scale * Sᵀ - LSE); dSᵀ = scale * Pᵀ (dPᵀ - delta)
//	dV += Pᵀ dO; dK += dSᵀ Q                   columns in the lanes
//	dQᵀ = Kᵀ dSᵀ                               [dim][lanes]
//
// Every operand of rows is read once and dQ is written once. K, V, dK and dV of all keys stay in cache.
//
// If a KV head has several chunks, each chunk has its own sums of dK and dV. The next phase adds these
// sums in order. Chunks depend on the sequence's lengths alone, so the bits depend neither on the number
// of workers nor on the batch.
//
// Where the band hides a pair, P and dS are 0. If Q or dO of such a tile has NaN or infinity, the product of
// a key takes only the rows that see the key, because 0 times NaN is NaN.

const (
	fewKeys      = 128  // most keys of a problem
	fetchBytes   = 4096 // bytes of a tensor to prefetch at a time, approximately
	rowSlack     = 16   // elements after the last row of a copy
	chunkRowsOfQ = 512  // query rows of a chunk; also limits the length of a float32 sum
)

func fitsFewKeys(t tier, p flashkit.Problem) string {
	if reason := t.refuses(p); reason != "" {
		return reason
	}
	if p.KVLen > fewKeys {
		return fmt.Sprintf("supports at most %d keys, not %d", fewKeys, p.KVLen)
	}
	return ""
}

func (isa *laneRoutines) planFewKeys(pl *plan) {
	p, lanes := &pl.p, isa.lanes
	dim, vdim := pad(p.Dim), pad(p.VDim)
	pl.apart, pl.part = !pl.ragged, ceilDiv(p.KVLen*(dim+vdim), lanes)*lanes
	var all items.Counts
	for b := range pl.sequences() {
		all.Add(isa.fewKeysSpan(pl, b).Counts)
	}
	floats := lanes*(2*dim+2*vdim+2*max(dim, vdim)+3) + 3*rowSlack + p.KVLen*(p.Dim+p.VDim+2*lanes+1) + pl.part
	pl.work, pl.shared = [2]pool.Phase{{Items: all.Items, Floats: floats}, {Items: all.Merges}}, all.Results
}

// tilesOfGroup returns the tiles of n rows of all query heads that share a KV head.
func (isa *laneRoutines) tilesOfGroup(p *flashkit.Problem, n int) int {
	return p.Heads / p.KVHeads * ceilDiv(n, isa.lanes)
}

// rowChunks returns the chunks of a KV head whose query heads have n rows each.
func (isa *laneRoutines) rowChunks(p *flashkit.Problem, n int) int {
	return max(1, ceilDiv(isa.tilesOfGroup(p, n), chunkRowsOfQ/isa.lanes))
}

// fewKeysSpan returns a sequence's entry in the table of items. An item is a chunk of a KV head.
func (isa *laneRoutines) fewKeysSpan(pl *plan, b int) items.Span {
	n, _, m := pl.side(b, true)
	s := items.Span{B: b, Heads: pl.p.KVHeads * pl.alike(), Tiles: isa.rowChunks(&pl.p, n), Turns: 1, Length: n * m}
	if s.Items = s.Heads * s.Tiles; s.Tiles > 1 {
		s.Merges, s.Results = s.Heads, count(float64(s.Items)*float64(pl.part))
	}
	return s
}

func (isa *laneRoutines) backwardFewKeys() func(context.Context, *job) {
	return func(ctx context.Context, j *job) {
		t := &j.byKey
		t.Reset(items.Order{Heads: j.p.KVHeads, Turns: 1, LongestFirst: true}, 0, j.sequences())
		for b := range j.sequences() {
			t.Spans = append(t.Spans, isa.fewKeysSpan(&j.plan, b))
		}
		t.Arrange()
		j.Shared.Reserve(j.plan.shared)
		j.parallel(ctx, isa.fewKeysChunk, j.work[0])
		if j.work[1].Items > 0 {
			j.parallel(ctx, isa.fewKeysSums, j.work[1])
		}
	}
}

// keyGrads is an item's state.
type keyGrads struct {
	seqTile
	q, do, o, dq, lse headRows
	k, v              []float32 // [keys][kStep], [keys][vStep]
	kStep, vStep      int
	sums, dk, dv      []float32 // dk and dv are parts of sums: [keys][padded dim], [keys][padded vdim]
	qT, doT, oT, dqT  []float32 // a tile, transposed: [padded dim][lanes] or [padded vdim][lanes]
	qBuf, doBuf, buf  []float32 // [lanes][padded dim], [lanes][padded vdim], and room for either
	s, dp             []float32 // [keys][lanes]
	masks             []uint32  // [keys], a bit for each row of the tile that sees the key
	whole             int       // if not 0, masks has this number of rows, which all see all keys
	lseT, delta       []float32 // [lanes]
	top               []float32 // [lanes], scratch for row maxima
	ahead             int       // rows to prefetch at a time, a multiple of lanes
}

// headRows is the query rows of a head of a tensor.
type headRows struct {
	t             *flashkit.Tensor
	at, step, dim int // offset of row 0; distance between rows and length of a row, in elements
	run           int // elements of t that follow one another in memory from row 0 on, including rows of later heads; 0 if rows have gaps
}

func (x *keyGrads) rowsIn(t *flashkit.Tensor) headRows {
	shape := t.Shape()
	r := headRows{t: t, at: t.Offset(x.QBatch, x.h, x.Q0), step: rowStep(t), dim: shape[3]}
	if r.step == r.dim {
		r.run = x.N * r.dim
		if t.Strides()[1] == r.run {
			r.run *= shape[1] - x.h
		}
	}
	return r
}

func (x *keyGrads) setHead(f *flashkit.Args, h int) {
	x.h = h
	x.q, x.do, x.o, x.dq, x.lse = x.rowsIn(&f.Q), x.rowsIn(&f.DO), x.rowsIn(&f.O), x.rowsIn(&f.DQ), x.rowsIn(&f.LSE)
}

func (isa *laneRoutines) fewKeysChunk(j *job, ws *pool.Arena, item int) {
	var x keyGrads
	s := j.byKey.Span(item)
	b, g, chunk := j.byKey.Find(item)
	x.seqTile = j.tileOf(b, -1, g)
	if x.sums = ws.Take(j.part); s.Tiles > 1 {
		x.sums = j.Shared.All[s.Results+(item-s.Items)*j.part:][:j.part]
	}
	isa.setFewKeys(&x, j, ws)
	tiles, size := ceilDiv(x.N, isa.lanes), chunkRowsOfQ/isa.lanes
	for t := chunk * size; t < min((chunk+1)*size, isa.tilesOfGroup(&j.p, x.N)); t++ {
		if j.Canceled() {
			return
		}
		if h := g*(j.p.Heads/j.p.KVHeads) + t/tiles; h != x.h {
			x.setHead(j.args, h)
		}
		x.from = t % tiles * isa.lanes
		x.to = min(x.from+isa.lanes, x.N)
		if x.from%x.ahead == 0 {
			isa.fetchFew(j, &x)
		}
		isa.fewKeysTile(j, &x)
	}
	if s.Tiles == 1 {
		isa.storeFewKeys(j, &x)
	}
	if chunk == 0 && j.ragged {
		j.clearFewPadding(b, g)
	}
}

// clearFewPadding zeros the gradients in the padding of a KV head and its query heads.
func (j *job) clearFewPadding(b, g int) {
	x := j.tileOf(b, 0, g)
	x.setKeys(&j.plan, 0, x.M)
	j.clearGradKeys(&x)
	for h := range j.p.Heads / j.p.KVHeads {
		y := j.tileOf(b, g*(j.p.Heads/j.p.KVHeads)+h, g)
		y.setRows(&j.plan, 0, y.N)
		j.clearGradRows(&y)
	}
}

// fetchFew prefetches the rows that the item visits after the next x.ahead rows of the head: rows of this
// head, or else the first rows of the next head.
func (isa *laneRoutines) fetchFew(j *job, x *keyGrads) {
	y, from := x, x.from+x.ahead
	if from >= x.N {
		next := x.b*j.p.Heads + x.h + 1
		if next == j.p.Batch*j.p.Heads {
			return
		}
		var z keyGrads
		z.b = next / j.p.Heads
		z.Seq = j.call.Seq(z.b)
		z.setHead(j.args, next%j.p.Heads)
		y, from = &z, 0
	}
	n := min(x.ahead, y.N-from)
	if n <= 0 {
		return
	}
	for _, r := range [...]*headRows{&y.q, &y.do, &y.o, &y.dq} {
		f := partOf(r.t, r.at+from*r.step, r.step, n, r.dim)
		if f.left = n; r.step == r.dim {
			f.bytes, f.left = f.bytes*n, 1
		}
		isa.fetch((*byte)(f.from), f.step, f.bytes, f.left)
	}
}

func (isa *laneRoutines) setFewKeys(x *keyGrads, j *job, ws *pool.Arena) {
	p, f, lanes := &j.p, j.args, isa.lanes
	dim, vdim := pad(p.Dim), pad(p.VDim)
	clear(x.sums)
	x.dk, x.dv = x.sums, x.sums[x.M*dim:]
	x.qT, x.doT, x.oT = ws.Take(lanes*dim), ws.Take(lanes*vdim), ws.Take(lanes*max(dim, vdim))
	x.dqT = x.oT // O is used no more when dQ is computed
	x.qBuf, x.doBuf, x.buf = ws.Take(lanes*dim+rowSlack), ws.Take(lanes*vdim+rowSlack), ws.Take(lanes*max(dim, vdim)+rowSlack)
	x.lseT, x.delta, x.top = ws.Take(lanes), ws.Take(lanes), ws.Take(lanes)
	x.ahead = max(1, fetchBytes/(max(1, p.Dim)*p.DType.Size()*lanes)) * lanes
	if x.M == 0 {
		return
	}
	x.s, x.dp, x.masks = ws.Take(x.M*lanes), ws.Take(x.M*lanes), takeWords(ws, x.M)
	x.k, x.kStep = isa.view(&f.K, x.KVBatch, x.g, x.K0, x.M, ws.Take(x.M*p.Dim))
	x.v, x.vStep = isa.view(&f.V, x.KVBatch, x.g, x.K0, x.M, ws.Take(x.M*p.VDim))
}

// fewKeysTile computes dQ of a tile, and adds the tile's share to dK and dV.
func (isa *laneRoutines) fewKeysTile(j *job, x *keyGrads) {
	p, f, b, h, row, n := &j.p, j.args, x.QBatch, x.h, x.Q0+x.from, x.to-x.from
	lo, allTo := x.Keys(x.from)
	allFrom, hi := x.Keys(x.to - 1)
	if lo >= hi {
		clearRows(&f.DQ, b, h, row, row+n)
		return
	}
	keys, edge := hi-lo, allFrom > lo || allTo < hi
	q, qStep := isa.loadFew(x, x.qT, x.qBuf, &x.q)
	do, doStep := isa.loadFew(x, x.doT, x.doBuf, &x.do)
	isa.loadFew(x, x.oT, x.buf, &x.o)
	isa.dots(&x.delta[0], &x.doT[0], &x.oT[0], p.VDim)
	j.takeDLSE(x.delta, b, h, row, n)
	takeLSE(x.lseT[:n], f.LSE.Float32s()[x.lse.at+x.from*x.lse.step:], x.lse.step)
	k, v := x.k[lo*x.kStep:], x.v[lo*x.vStep:]
	isa.scores(&x.s[0], &k[0], x.kStep, &x.qT[0], p.Dim, keys, &x.top[0], &k[0])
	isa.scores(&x.dp[0], &v[0], x.vStep, &x.doT[0], p.VDim, keys, &x.top[0], &v[0])
	x.setMasks(lo, keys, edge)
	isa.gradientsT(&x.s[0], &x.dp[0], &x.masks[0], keys, &x.lseT[0], &x.delta[0], float32(j.scale))
	single := edge && !(isa.finiteLanes(x, x.qT, p.Dim, n) && isa.finiteLanes(x, x.doT, p.VDim, n))
	isa.addFewKeys(j, x, lo, keys, single, queryRows{q, do, qStep, doStep})
	var masks *uint32
	if edge {
		masks = &x.masks[0]
	}
	isa.addValues(&x.dqT[0], &k[0], x.kStep, &x.dp[0], keys, p.Dim, nil, masks)
	isa.storeFewRows(x, n)
}

// setMasks sets x.masks for the keys [lo, lo+keys). edge reports whether the band hides any of these keys
// from any row of the tile.
func (x *keyGrads) setMasks(lo, keys int, edge bool) {
	n := x.to - x.from
	if !edge && x.whole == n && keys == x.M {
		return
	}
	for c := range keys {
		from, to := x.rowsOf(lo + c)
		x.masks[c] = laneMask(from, to, n)
	}
	if x.whole = 0; !edge && keys == x.M {
		x.whole = n
	}
}

// loadFew sets dst to the transpose of the tile's rows of r. It returns the rows before the transposition,
// in place or as a copy in buf. Elements after a row's last column, up to a multiple of 16, are readable but
// undefined. So are the lanes after the tile's last row.
func (isa *laneRoutines) loadFew(x *keyGrads, dst, buf []float32, r *headRows) (rows []float32, step int) {
	n, at, wide := x.to-x.from, x.from*r.step, pad(r.dim)
	inPlace := n == isa.lanes && r.dim == wide || at+(isa.lanes-1)*r.dim+wide <= r.run
	if rows, step = buf, r.dim; r.t.DType() == flashkit.Float32 && inPlace {
		rows, step = r.t.Float32s()[r.at+at:], r.step
	} else {
		isa.loadEvery(buf, r.dim, r.dim, r.t, r.at+at, r.step, n)
	}
	isa.toLanes(dst, rows, step, ceilDiv(r.dim, isa.block)*isa.block)
	return rows, step
}

// rowsOf returns the rows [from, to) of the tile that see a key, counted from the tile's first row.
func (x *keyGrads) rowsOf(key int) (from, to int) {
	from, to = x.Queries(key)
	return max(from, x.from) - x.from, min(to, x.to) - x.from
}

// finiteLanes reports whether the first n columns of the transposed tile xT, [dim][lanes], are finite.
func (isa *laneRoutines) finiteLanes(x *keyGrads, xT []float32, dim, n int) bool {
	isa.dots(&x.top[0], &xT[0], &xT[0], dim)
	return allFinite(x.top[:n])
}

// addFewKeys adds Pᵀ dO and dSᵀ Q of a tile to dV and dK of the keys [lo, lo+keys). If single is true, the
// product of a key takes only the rows that see the key.
func (isa *laneRoutines) addFewKeys(j *job, x *keyGrads, lo, keys int, single bool, y queryRows) {
	p, lanes, dim, vdim := &j.p, isa.lanes, pad(j.p.Dim), pad(j.p.VDim)
	group := keys
	if single {
		group = 1
	}
	for c := 0; c < keys; c += group {
		from, to := 0, x.to-x.from
		if single {
			from, to = x.rowsOf(lo + c)
		}
		if from < to {
			at, key := c*lanes+from, lo+c
			isa.add(isa.addProduct, isa.addProductMasked, x.dv[key*vdim:], vdim, x.s[at:], lanes, y.do[from*y.doStep:], y.doStep, group, to-from, p.VDim)
			isa.add(isa.addProduct, isa.addProductMasked, x.dk[key*dim:], dim, x.dp[at:], lanes, y.q[from*y.qStep:], y.qStep, group, to-from, p.Dim)
		}
	}
}

// storeFewRows writes dQ of the n rows of a tile.
func (isa *laneRoutines) storeFewRows(x *keyGrads, n int) {
	r := &x.dq
	dim, at := pad(r.dim), r.at+x.from*r.step
	if r.t.DType() == flashkit.Float32 && n == isa.lanes && r.dim%isa.block == 0 {
		isa.fromLanes(r.t.Float32s()[at:], r.step, x.dqT, r.dim, ones[:])
		return
	}
	isa.fromLanes(x.buf, dim, x.dqT, dim, ones[:])
	isa.storeEvery(r.t, at, r.step, n, x.buf, dim)
}

// storeFewKeys writes dK and dV of a KV head.
func (isa *laneRoutines) storeFewKeys(j *job, x *keyGrads) {
	isa.storeRows(&j.args.DK, x.KVBatch, x.g, x.K0, x.M, x.dk, pad(j.p.Dim))
	isa.storeRows(&j.args.DV, x.KVBatch, x.g, x.K0, x.M, x.dv, pad(j.p.VDim))
}

// fewKeysSums adds the sums of a KV head's chunks, and writes dK and dV.
func (isa *laneRoutines) fewKeysSums(j *job, _ *pool.Arena, item int) {
	s := j.byKey.MergeSpan(item)
	head, part := item-s.Merges, j.part
	x := keyGrads{seqTile: j.tileOf(s.B+head/j.p.KVHeads, 0, head%j.p.KVHeads)}
	all := j.Shared.All[s.Results+head*s.Tiles*part:][:s.Tiles*part]
	x.sums = all[:part]
	for c := 1; c < s.Tiles && part > 0; c++ {
		isa.addSum(&x.sums[0], &all[c*part], part/isa.lanes, &ones[0])
	}
	x.dk, x.dv = x.sums, x.sums[x.M*pad(j.p.Dim):]
	isa.storeFewKeys(j, &x)
}
