//go:build (amd64 || arm64) && !purego

package simd

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// The kernels bwd_decode_avx512, bwd_decode_avx2 and bwd_decode_neon are for few query rows. An item
// is a KV head, or several KV heads with few rows and keys. The rows of all query heads that share
// the KV head form one matrix, in the order of the decode kernels: query row i of head h of this
// group is row r = i*group + h. The rows stay in cache while the item visits each block of keys once:
//
//	S = Q Kᵀ; dP = dO Vᵀ                     [rows][keys], by the routine of the decode kernels
//	P = exp(scale * S - LSE); dS = scale * P (dP - delta)
//	dV = Pᵀ dO; dK = dSᵀ Q; dQ += dS K       columns in the lanes
//
// The head dim is in the lanes, so that neither a single row nor a single key leaves lanes idle. S
// has the bits of the forward kernel of the same name, which determined LSE.
//
// Every row of a block is multiplied with every key of the block. Where the band hides a pair, P and
// dS are 0. If an operand has NaN or infinity, each row and each key takes its visible pairs alone,
// because 0 times NaN is NaN.

// bwdDecodeKeys is the largest number of keys that the kernels support. dQ is one float32 sum over
// all keys, and a longer sum would lose digits.
const bwdDecodeKeys = gradRun

// fitsBwdDecode returns the reason why a kernel of tier t does not support p, or "".
func fitsBwdDecode(t tier, p flashkit.Problem) string {
	if reason := fitsDecode(t, p); reason != "" {
		return reason
	}
	if p.KVLen > bwdDecodeKeys {
		return fmt.Sprintf("supports at most %d keys, not %d", bwdDecodeKeys, p.KVLen)
	}
	return ""
}

// itemPairs is the most pairs of a row and a key of all KV heads of an item, unless one head has more.
const itemPairs = 128

func planBwdDecode(pl *plan) {
	const fewest = 4 // least items per worker, if items have several heads
	c := pl.call
	keys, rows := max(1, min(decodeBlock, c.KVLen)), c.Heads/c.KVHeads*c.QLen
	dim, vdim := pl.gradSteps()
	n := (rows+decodePad)*(2*(dim+vdim)+3*decodeStep) + rows*(dim+vdim+2) + keys*(2*dim+2*vdim) + 4*decodeBlock + 3*decodeWidest + max(dim, vdim)
	n += rows*ceilDiv(keys, fewestLanes) + 2*deltaRows
	heads := c.KVHeads * pl.sequences() * pl.alike()
	pl.headsPerItem = 1
	if !pl.ragged && c.KVLen <= decodeBlock {
		pl.headsPerItem = max(1, min(itemPairs/(max(1, rows)*keys), heads/(fewest*pl.workers)))
	}
	pl.apart = pl.headsPerItem > 1
	pl.work[0] = pool.Phase{Items: ceilDiv(heads, pl.headsPerItem), Floats: n}
}

// gradSteps returns the distances between rows of Q, and between rows of dO, in workspace.
func (pl *plan) gradSteps() (dim, vdim int) {
	return ceilDiv(pl.p.Dim, decodeWidest) * decodeWidest, ceilDiv(pl.p.VDim, decodeWidest) * decodeWidest
}

func (isa *decodeRoutines) backward() func(context.Context, *job) {
	return func(ctx context.Context, j *job) {
		t := &j.byKey
		t.Reset(items.Order{Heads: j.p.KVHeads, LongestFirst: true}, max(1, j.p.KVLen), j.sequences())
		for b := range j.sequences() {
			heads := j.p.KVHeads * j.alike()
			n, _, m := j.side(b, true)
			t.Spans = append(t.Spans, items.Span{B: b, Heads: heads, Tiles: 1, Turns: max(1, heads), Length: n * m, Counts: items.Counts{Items: heads}})
		}
		t.Arrange()
		j.parallel(ctx, isa.bwdItem, j.work[0])
	}
}

// rowGrads is an item: the gradients of a KV head and of the query heads that share it.
type rowGrads struct {
	seqTile
	group         int
	rows          int            // query rows in all heads of the group
	as            flashkit.DType // the type in which K and V are read
	qStep, doStep int
	q, do, o      []float32 // [rows][qStep], [rows][doStep] and [rows][doStep], padded with 0
	qs, dos       []float32 // Q and dO in the order of columns that isa.attend expects
	dq            []float32 // [rows][qStep]
	lse, delta    []float32 // [rows]
	s, dp, ds     []float32 // [rows][decodeStep], or [rows][lanes] of a block with a vector of keys
	k, v          gradKeys
	dk, dv        []float32    // [keys of a block][padded dim], unless the tensors hold the sums
	masks         []uint32     // of the vectors of all rows of scores
	stats         [2][]float32 // LSE and delta of a row, repeated for each of its vectors
	oAt           []int        // offsets of rows of O, in bytes
	scratch       []float32
	nonFinite     bool // Q or dO may have NaN or infinity
}

// gradKeys is the rows of K or V that an item reads.
type gradKeys struct {
	t   *flashkit.Tensor
	at  []int     // offsets of a block's rows from the block's first row, in bytes
	buf []float32 // widened rows of a block
}

func (isa *decodeRoutines) bwdItem(j *job, ws *pool.Arena, item int) {
	var x rowGrads
	first := item * j.headsPerItem // with several heads of an item, all heads are in one span
	x.findKeys(&j.plan, first)
	isa.setGrads(&x, j, ws)
	isa.headGrads(&x, j)
	if j.headsPerItem > 1 {
		for head := first + 1; head < min(first+j.headsPerItem, j.p.Batch*j.p.KVHeads) && !j.Canceled(); head++ {
			x.b, x.g = head/j.p.KVHeads, head%j.p.KVHeads
			x.QBatch, x.KVBatch = x.b, x.b
			isa.headGrads(&x, j)
		}
	}
}

// headGrads computes the gradients of a KV head and of its query heads.
func (isa *decodeRoutines) headGrads(x *rowGrads, j *job) {
	clear(x.dq)
	isa.loadGrads(x, j)
	first, last := seenOf(&x.Seq)
	if last-first < x.M {
		j.clearKeys(&x.seqTile, 0, first)
		j.clearKeys(&x.seqTile, last, x.M)
	}
	for from := first; from < last && !j.Canceled(); from += decodeBlock {
		isa.addBlock(j, x, from, min(decodeBlock, last-from))
	}
	isa.storeGroup(&j.args.DQ, x.QBatch, x.g*x.group, x.group, x.Q0, x.N, x.dq, x.qStep)
	if !j.ragged {
		return // no padding
	}
	j.clearGradKeys(&x.seqTile)
	for h := range x.group {
		y := j.tileOf(x.b, x.g*x.group+h, x.g)
		y.setRows(&j.plan, 0, y.N)
		j.clearGradRows(&y)
	}
}

// setGrads sets what all heads of an item share.
func (isa *decodeRoutines) setGrads(x *rowGrads, j *job, ws *pool.Arena) {
	x.group = j.p.Heads / j.p.KVHeads
	x.rows, x.as = x.group*x.N, isa.storage(j)
	x.qStep, x.doStep = j.gradSteps()
	keys, room := max(1, min(decodeBlock, x.M)), x.rows+decodePad
	x.q, x.do, x.o = ws.Take(room*x.qStep), ws.Take(room*x.doStep), ws.Take(x.rows*x.doStep)
	x.qs, x.dos = x.q, x.do
	if isa.splits(x.as) {
		x.qs, x.dos = ws.Take(room*x.qStep), ws.Take(room*x.doStep)
	}
	x.dq, x.lse, x.delta = ws.Take(x.rows*x.qStep), ws.Take(x.rows), ws.Take(x.rows)
	x.s, x.dp, x.ds = ws.Take(room*decodeStep), ws.Take(room*decodeStep), ws.Take(x.rows*decodeStep)
	x.k, x.v = gradKeys{&j.args.K, takeInts(ws, keys), ws.Take(keys * x.qStep)}, gradKeys{&j.args.V, takeInts(ws, keys), ws.Take(keys * x.doStep)}
	x.dk, x.dv = ws.Take(keys*x.qStep), ws.Take(keys*x.doStep)
	x.masks, x.stats = takeWords(ws, max(1, x.rows*ceilDiv(keys, isa.lanes))), [2][]float32{ws.Take(decodeWidest), ws.Take(decodeWidest)}
	x.oAt = takeInts(ws, deltaRows)
	x.scratch = ws.Take(max(x.qStep, x.doStep, isa.lanes))
	clear(x.q[x.rows*x.qStep:])
	clear(x.do[x.rows*x.doStep:])
	x.k.place(x.as)
	x.v.place(x.as)
}

// loadGrads loads the rows of Q and dO and sets LSE and delta.
func (isa *decodeRoutines) loadGrads(x *rowGrads, j *job) {
	f, p, h := j.args, &j.p, x.g*x.group
	isa.loadGroup(x.q, x.qStep, &f.Q, x.QBatch, h, x.group, x.Q0, x.N)
	isa.loadGroup(x.do, x.doStep, &f.DO, x.QBatch, h, x.group, x.Q0, x.N)
	if isa.splits(x.as) {
		copy(x.qs, x.q)
		copy(x.dos, x.do)
		if n := x.rows; n > 0 {
			isa.splitRow(&x.qs[0], n*x.qStep)
			isa.splitRow(&x.dos[0], n*x.doStep)
		}
	}
	isa.setDelta(j, x)
	if x.group == 1 {
		j.takeDLSE(x.delta, x.QBatch, h, x.Q0, x.N)
		j.takeLSE(x.lse, x.QBatch, h, x.Q0, x.N)
	} else {
		for r := range x.rows {
			i, g := r/x.group, r%x.group
			j.takeDLSE(x.delta[r:], x.QBatch, h+g, x.Q0+i, 1)
			j.takeLSE(x.lse[r:], x.QBatch, h+g, x.Q0+i, 1)
		}
	}
	if p.Band != (flashkit.Band{}) && x.rows > 0 {
		sums := x.s[:isa.lanes]
		x.nonFinite = isa.nonFinite(x.q, x.rows*x.qStep/isa.lanes, sums) || isa.nonFinite(x.do, x.rows*x.doStep/isa.lanes, sums)
	}
}

// deltaRows is the number of rows of dO and O that setDelta multiplies at a time.
const deltaRows = 4

// setDelta sets delta to the dot product of dO and O in each row. The instructions that sum dP compute
// it in the same order. So dS is exactly 0 in a row that sees one key. Of the products of several rows,
// the diagonal is used.
func (isa *decodeRoutines) setDelta(j *job, x *rowGrads) {
	t, as, do, h := &j.args.O, x.as, x.do, x.g*x.group
	step, headStep := t.Strides()[2], t.Strides()[1]
	var o *byte
	switch {
	case x.rows == 0:
		return
	case as == t.DType():
		o = &bytesOf(t, t.Offset(x.QBatch, h, x.Q0), 1)[0]
		if as != flashkit.Float32 {
			do = x.dos
		}
	default:
		isa.loadGroup(x.o, x.doStep, t, x.QBatch, h, x.group, x.Q0, x.N)
		as, o, step, headStep = flashkit.Float32, (*byte)(unsafe.Pointer(&x.o[0])), x.group*x.doStep, x.doStep
	}
	for r := 0; r < x.rows; r += deltaRows {
		n := min(deltaRows, x.rows-r)
		for c := range n {
			x.oAt[c] = ((r+c)/x.group*step + (r+c)%x.group*headStep) * as.Size()
		}
		isa.products(as, x.s, o, x.oAt, do[r*x.doStep:], x, x.doStep, j.p.VDim, n, n)
		for c := range n {
			x.delta[r+c] = x.s[c*decodeStep+c]
		}
	}
}

// place sets the offsets of a block's rows, which are read in place or widened to k.buf.
func (k *gradKeys) place(as flashkit.DType) {
	step, size := pad(k.t.Shape()[3]), as.Size()
	if as == k.t.DType() {
		step = rowStep(k.t)
	}
	for i := range k.at {
		k.at[i] = i * step * size
	}
}

// block returns the address of n rows from key `from` on, in the type as.
func (isa *decodeRoutines) block(x *rowGrads, k *gradKeys, from, n int) *byte {
	if x.as == k.t.DType() {
		return &bytesOf(k.t, k.t.Offset(x.KVBatch, x.g, x.K0+from), 1)[0]
	}
	isa.loadRows(k.buf, pad(k.t.Shape()[3]), k.t, x.KVBatch, x.g, x.K0+from, n)
	return (*byte)(unsafe.Pointer(&k.buf[0]))
}

// addBlock computes dK and dV of keys [from, from+n) and adds the share of these keys to dQ.
func (isa *decodeRoutines) addBlock(j *job, x *rowGrads, from, n int) {
	p := &j.p
	first, _ := x.Queries(from)
	_, last := x.Queries(from + n - 1)
	lo, rows := first*x.group, (last-first)*x.group
	k, kStep := isa.laneRoutines.rows(x.k.t, x.KVBatch, x.g, x.K0+from, n, pad(p.Dim), x.k.buf)
	isa.products(x.as, x.s, isa.block(x, &x.k, from, n), x.k.at, x.qs[lo*x.qStep:], x, x.qStep, p.Dim, rows, n)
	hides := x.hides(from, n, lo, rows)
	single := hides && (x.nonFinite || !allFinite(x.s[:n]))
	isa.products(x.as, x.dp, isa.block(x, &x.v, from, n), x.v.at, x.dos[lo*x.doStep:], x, x.doStep, p.VDim, rows, n)
	step := isa.rowGradients(j, x, from, n, lo, rows)
	dk, dkStep := isa.gradRows(&j.args.DK, x, x.dk, x.qStep, from, n)
	dv, dvStep := isa.gradRows(&j.args.DV, x, x.dv, x.doStep, from, n)
	for key, r := 0, 0; key < n; key += r {
		r = n
		at, seen := 0, rows
		if single {
			r = 1
			a, b := x.Queries(from + key)
			at, seen = (a-first)*x.group, (b-a)*x.group
		}
		if seen > 0 {
			isa.add(isa.addProductT, isa.addProductTMasked, dv[key*dvStep:], dvStep, x.s[at*step+key:], step, x.do[(lo+at)*x.doStep:], x.doStep, r, seen, p.VDim)
			isa.add(isa.addProductT, isa.addProductTMasked, dk[key*dkStep:], dkStep, x.ds[at*step+key:], step, x.q[(lo+at)*x.qStep:], x.qStep, r, seen, p.Dim)
		}
	}
	for row, r := 0, 0; row < rows; row += r {
		r = rows
		a, b := 0, n
		if single {
			r = 1
			a, b = x.Keys(first + row/x.group)
			a, b = max(a-from, 0), min(b-from, n)
		}
		if a < b {
			isa.add(isa.addProduct, isa.addProductMasked, x.dq[(lo+row)*x.qStep:], x.qStep, x.ds[row*step+a:], step, k[a*kStep:], kStep, r, b-a, p.Dim)
		}
	}
	isa.storeGrads(&j.args.DK, x, dk, dkStep, from, n)
	isa.storeGrads(&j.args.DV, x, dv, dvStep, from, n)
}

// products sets s[r][i] to the dot product of row r of q and row i of a block in the given type.
func (isa *decodeRoutines) products(as flashkit.DType, s []float32, k *byte, at []int, q []float32, x *rowGrads, step, dim, rows, n int) {
	isa.attend[as](&s[0], k, &at[0], aheadBytes, &q[0], step, dim, rows, n, &x.dq[0], x.qStep, &x.scratch[0], &s[0], k, &at[0], aheadBytes, 0, 1, 0, 0)
}

// hides reports whether the band hides any of the keys [from, from+n) from any of the rows.
func (x *rowGrads) hides(from, n, lo, rows int) bool {
	_, end := x.Keys(lo / x.group)
	begin, _ := x.Keys((lo + rows - 1) / x.group)
	return begin > from || end < from+n
}

// rowGradients replaces x.s by P and sets x.ds to dS, for keys [from, from+n). lo is the first row. It
// returns the distance between rows of P and dS.
func (isa *decodeRoutines) rowGradients(j *job, x *rowGrads, from, n, lo, rows int) (step int) {
	words, lse, delta := ceilDiv(n, isa.lanes), x.lse[lo:], x.delta[lo:]
	for r := range rows {
		masks := x.masks[r*words:][:words]
		if r > 0 && (r%x.group != 0 || j.p.Band == (flashkit.Band{})) {
			copy(masks, x.masks[(r-1)*words:])
			continue
		}
		first, last := x.Keys((lo + r) / x.group)
		for w := range masks {
			masks[w] = laneMask(first-from-w*isa.lanes, min(last-from, n)-w*isa.lanes, isa.lanes)
		}
	}
	if words == 1 { // one call for all rows
		for r := 1; r < rows; r++ {
			copy(x.s[r*isa.lanes:][:isa.lanes], x.s[r*decodeStep:])
			copy(x.dp[r*isa.lanes:][:isa.lanes], x.dp[r*decodeStep:])
		}
		isa.gradients(&x.s[0], &x.dp[0], &x.ds[0], isa.lanes, &x.masks[0], rows, &lse[0], &delta[0], float32(j.scale))
		return isa.lanes
	}
	for r := range rows {
		for w := range words {
			x.stats[0][w], x.stats[1][w] = lse[r], delta[r]
		}
		s, dp, ds := &x.s[r*decodeStep], &x.dp[r*decodeStep], &x.ds[r*decodeStep]
		isa.gradients(s, dp, ds, isa.lanes, &x.masks[r*words], words, &x.stats[0][0], &x.stats[1][0], float32(j.scale))
	}
	return decodeStep
}

// gradRows returns zeros for the sums of n rows of t from key `from` on: rows of t itself if
// products can add to them, or else buf.
func (isa *decodeRoutines) gradRows(t *flashkit.Tensor, x *rowGrads, buf []float32, step, from, n int) ([]float32, int) {
	if !isa.direct(t) {
		clear(buf[:n*step])
		return buf, step
	}
	rows, step := t.Float32s()[t.Offset(x.KVBatch, x.g, x.K0+from):], rowStep(t)
	if dim := t.Shape()[3]; step == dim {
		clear(rows[:n*dim])
	} else {
		for i := range n {
			clear(rows[i*step:][:dim])
		}
	}
	return rows, step
}

func (isa *decodeRoutines) storeGrads(t *flashkit.Tensor, x *rowGrads, rows []float32, step, from, n int) {
	if !isa.direct(t) {
		isa.storeRows(t, x.KVBatch, x.g, x.K0+from, n, rows, step)
	}
}
