//go:build (amd64 || arm64) && !purego

package simd

import (
	"context"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// The kernels decode_avx512, decode_avx2, decode_neon, decode_neonfhm and decode_neonbf16 are for
// few query rows. Memory limits their speed, so these kernels read K and V once. The rows of all
// query heads that share a KV head form one matrix. Query row i of head h of this group is row r =
// i*group + h of the matrix. For each KV head and each chunk of its keys, the kernels compute
//
//	m, l, o = -Inf, 0, 0                        [rows], [rows], [rows][vdim]
//	for each block of keys, and the rows that see its keys:
//		S = score(Q Kᵀ); a, m = m, max(m, S)   [rows][keys]
//		P, a = exp(unit * (S-m)), exp(unit * (a-m))
//		l = a*l + sum(P); o = a*o + drop(P) V
//
// Here unit is the softmax scale, or 1 if S already includes the scale, and drop applies dropout.
// Then the kernels merge the chunks of each head in order. (Dao et al. 2023, Flash-Decoding.)
//
// The head dim is in the lanes. The rows for which a key is inside the band are neighbors. A block
// ends where these rows change, unless it would be short. The routine attend
// alternates, every four keys, between the scores of a block and the values of the block before. So
// attend reads K and V all the time.
//
// Chunks depend on the sequence alone and are merged in order. So the bits depend neither on the
// number of workers nor on the other sequences of the batch.

// decode returns the Run function of a kernel that computes chunks and then merges them. The
// function chunks computes one item of the first phase, and merge one item of the second.
func decode(chunks, merge func(*job, *pool.Arena, int)) func(context.Context, *job) {
	return func(ctx context.Context, j *job) {
		j.cutDecode()
		j.Shared.Reserve(j.plan.shared)
		j.Hold(j.workers, j.work[:]...)
		j.holdOthers(j.work[0])
		j.parallel(ctx, chunks, j.work[0])
		if j.work[1].Items > 0 {
			j.parallel(ctx, merge, j.work[1])
		}
	}
}

func planDecodeLanes(pl *plan) {
	if !pl.planShort() {
		pl.planDecode(decodeTurns, decodeFloats(pl.call))
	}
}

// holdOthers allocates an otherHeads for each worker of a phase, if heads take turns.
func (j *job) holdOthers(work pool.Phase) {
	if !j.takesTurns() {
		return
	}
	for len(j.others) < pool.Size(j.workers, work) {
		j.others = append(j.others, otherHeads{})
	}
}

// decodeItem is an item: some chunks of one KV head, or of several KV heads that take turns.
type decodeItem struct {
	one     decodeHead
	others  *otherHeads    // the second and later heads
	turns   int            // number of heads
	as      flashkit.DType // the type in which K and V are read
	s       [2][]float32   // scores or weights of the current block and of the block before, [rows][decodeStep]
	k, v    keyRows
	scratch []float32 // rows beyond the last that routines may write, [decodePad][oStep]
	int8    int8Item
	before  []float32 // copy of O from before a block with hidden keys
}

type decodeHead struct {
	decodeSums
	decodeScores
	q []float32 // [rows][qStep]
}

// otherHeads has the second and later heads of an item. Jobs keep it between calls.
type otherHeads [decodeTurns - 1]decodeHead

func (x *decodeItem) head(i int) *decodeHead {
	if i == 0 {
		return &x.one
	}
	return &x.others[i-1]
}

func decodeFloats(c *flashkit.Call) int {
	rows := c.Heads / c.KVHeads * c.QLen
	qStep, oStep := decodeSteps(&c.Problem)
	n := (rows+decodePad)*2*decodeStep + keyFloats(c, c.Dim) + keyFloats(c, c.VDim) + decodePad*oStep
	n += decodeTurnsOf(c) * ((rows+decodePad)*qStep + sumFloats(rows, oStep) + scoreFloats(c, rows))
	if hidesPairs(c) {
		n += rows * oStep
	}
	return n + int8Floats(c)
}

func (isa *decodeRoutines) chunks(j *job, ws *pool.Arena, item int) {
	if j.decode.short {
		isa.shortHeads(j, ws, item)
		return
	}
	var x decodeItem
	isa.setItem(&x, j, ws, item)
	first, chunk := x.one.first, x.one.chunk
	from, to := first+x.one.from*chunk, min(x.one.last, first+x.one.to*chunk)
	var before seenKeys
	for from < to && !j.Canceled() {
		c := (from - first) / chunk
		keys := x.one.cut(from, min(to, first+(c+1)*chunk))
		if from += keys.n; keys.rows == 0 {
			continue
		}
		found := false
		for i := range x.turns {
			block, h := keys, x.head(i)
			block.head = i
			if !h.mask(isa.laneRoutines, j, &h.itemOfKeys, &block) {
				continue
			}
			x.find(&block, !found)
			found = true
			block.s, x.s[0], x.s[1] = x.s[0], x.s[1], x.s[0]
			isa.step(j, &x, block, before)
			h.reach(isa.laneRoutines, j, c)
			h.adjust(isa.laneRoutines, j, &h.itemOfKeys, &block)
			isa.weigh(block.s, block.rows, block.n, &h.m[block.row], &h.l[block.row], j.base2, &h.o[block.row*h.oStep], h.oStep)
			h.drop(isa.laneRoutines, j, &h.itemOfKeys, &block)
			before = block
		}
	}
	if before.n > 0 {
		isa.step(j, &x, seenKeys{}, before)
	}
	for i := range x.turns {
		isa.endItem(j, &x.head(i).decodeSums, x.scratch)
	}
}

func (isa *decodeRoutines) setItem(x *decodeItem, j *job, ws *pool.Arena, item int) {
	h := &x.one
	if j.decode.turns > 1 {
		x.others = &j.others[ws.Slot]
	}
	x.turns = h.setItem(j, ws, item, 0)
	x.as = isa.storage(j)
	x.scratch = ws.Take(decodePad * h.oStep)
	x.k.set(j, ws, x, &j.args.K)
	x.v.set(j, ws, x, &j.args.V)
	for i := range x.s {
		x.s[i] = ws.Take((h.rows + decodePad) * decodeStep)
	}
	if isa.int8.scores != nil && readsInt8(&j.p) {
		x.int8.set(j, ws, h.oStep)
	}
	if hidesPairs(j.call) {
		x.before = ws.Take(h.rows * h.oStep)
	}
	for i := range x.turns {
		if h = x.head(i); i > 0 {
			*h = decodeHead{}
			h.setItem(j, ws, item, i)
		}
		h.setScores(isa.laneRoutines, j, ws, &h.itemOfKeys)
		h.q = ws.Take((h.rows + decodePad) * h.qStep)
		clear(h.q[h.rows*h.qStep:])
		isa.loadQueries(h.q, &j.args.Q, h.QBatch, h.g, &h.itemOfKeys)
		if !isa.halves && isa.splits(x.as) && h.rows > 0 {
			isa.splitRow(&h.q[0], h.rows*h.qStep)
		}
	}
}

// loadQueries sets q, [rows][qStep], to the query rows of KV head g of sequence b.
func (isa *decodeRoutines) loadQueries(q []float32, t *flashkit.Tensor, b, g int, h *itemOfKeys) {
	if !isa.halves {
		isa.loadGroup(q, h.qStep, t, b, g*h.group, h.group, h.Q0, h.N)
		return
	}
	dim := t.Shape()[3]
	for r := range h.rows {
		row := q[r*h.qStep:][:h.qStep]
		head, i := h.queryOf(g, r)
		clear(row)
		copy(unsafe.Slice((*uint16)(unsafe.Pointer(&row[0])), dim), t.Uint16s()[t.Offset(b, head, h.Q0+i):])
	}
}

// step computes the scores of block next, and adds the weighted values of block before to O. Either
// block may be empty.
func (isa *decodeRoutines) step(j *job, x *decodeItem, next, before seenKeys) {
	if x.int8.in {
		isa.stepInt8(j, x, next, before)
		return
	}
	of, past := x.head(next.head), x.head(before.head)
	if before.seen != nil {
		copy(x.before, past.o)
	}
	var k, v unsafe.Pointer
	var s, w *float32
	if next.n > 0 {
		k, s = x.k.block(isa.laneRoutines, j, &of.itemOfKeys, next), &next.s[0]
	}
	if before.n > 0 {
		v, w = x.v.block(isa.laneRoutines, j, &past.itemOfKeys, before), &before.s[0]
	}
	p, q, o := &j.p, &of.q[next.row*of.qStep], &past.o[before.row*past.oStep]
	isa.attend[x.as](s, (*byte)(k), next.kAt, x.k.ahead, q, of.qStep, p.Dim, next.rows, next.n,
		o, past.oStep, &x.scratch[0], w, (*byte)(v), before.vAt, x.v.ahead, p.VDim, before.rows, before.n, min(x.k.tiles, x.v.tiles))
	if before.seen != nil {
		isa.repair(j, x, before, v)
	}
}

// find sets keys.kAt and keys.vAt. All heads of an item share the places of a block, which find
// computes for the first head.
func (x *decodeItem) find(keys *seenKeys, isFirst bool) {
	if !x.k.inPages() {
		keys.kAt, keys.vAt = &x.k.table[0], &x.v.table[0]
		return
	}
	same := x.k.step == x.v.step && x.k.pageStep == x.v.pageStep && x.k.headStep == x.v.headStep
	if isFirst {
		last := x.one.last
		x.k.find(keys, last, x.turns)
		if !same {
			x.v.find(keys, last, x.turns)
		}
	}
	isLast := keys.head == x.turns-1
	keys.kAt = x.k.at[0].of(isLast)
	if keys.vAt = keys.kAt; !same {
		keys.vAt = x.v.at[0].of(isLast)
	}
}

// repair recomputes the rows of O that are not finite after a block with hidden keys. The weight of
// a hidden key is 0, but 0 times NaN or infinity is NaN. So repair restores such a row of O from
// x.before, and adds only the values of keys that the row sees. v is the address to which the
// offsets of V are relative.
func (isa *decodeRoutines) repair(j *job, x *decodeItem, block seenKeys, v unsafe.Pointer) {
	past := x.head(block.head)
	o := past.o[block.row*past.oStep:][:block.rows*past.oStep]
	isa.repairRows(o, past.oStep, past.top, func(r int, row []float32) {
		copy(row, x.before[(block.row+r)*past.oStep:])
		places := unsafe.Slice(block.vAt, block.n)
		for key, place := range places {
			if past.sees(&block, r, key) {
				isa.addKey(x.as, row, x.scratch, &block.s[r*decodeStep+key], unsafe.Add(v, place), j.p.VDim)
			}
		}
	})
}

// repairRows calls again for each row of o with NaN or infinity. Rows are step elements apart. sums is
// scratch for one vector.
func (isa *laneRoutines) repairRows(o []float32, step int, sums []float32, again func(r int, row []float32)) {
	isa.dots(&sums[0], &o[0], &o[0], len(o)/isa.lanes)
	if allFinite(sums[:isa.lanes]) {
		return
	}
	for r := range len(o) / step {
		if row := o[r*step:][:step]; !allFinite(row) {
			again(r, row)
		}
	}
}

func (isa *decodeRoutines) addKey(as flashkit.DType, o, scratch []float32, weight *float32, v unsafe.Pointer, dim int) {
	isa.attend[as](nil, nil, nil, 0, nil, 0, 0, 0, 0, &o[0], len(o), &scratch[0], weight, (*byte)(v), &onePlace[0], aheadBytes, dim, 1, 1, 0)
}

var onePlace [1]int

func allFinite(x []float32) bool {
	for _, x := range x {
		if x-x != 0 {
			return false
		}
	}
	return true
}
