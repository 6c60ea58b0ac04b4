//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// The kernels decode_avx512 and decode_avx2 are for few query rows. Their time
// is that of reading K and V, so they read them once. The query heads that share
// a KV head are rows of one problem, r = i*group + h for row i of head h of the
// group. For each KV head and each chunk of the keys that any row sees,
//
//	m, l, o = -Inf, 0, 0                        [rows], [rows], [rows][vdim]
//	for each block of keys that the same rows see, and these rows:
//		S = Q Kᵀ; a, m = m, max(m, S)       [rows][keys]
//		P, a = exp(scale * (S-m)), exp(scale * (a-m))
//		l = a*l + sum(P); o = a*o + P V
//
// and then for each row the same once more, with the chunks for keys, their m
// for scores, and their o and l for values. (Dao et al. 2023, Flash-Decoding.)
//
// The head dim is in the lanes. A band hides a key from whole rows, and the rows
// that see it are neighbors: blocks are cut where the rows change, so nothing is
// masked, and a row that does not see a key never meets it. The scores of a block
// and the values of the block before are computed in turns, four keys each, so
// that K and V keep coming whatever is computed.
//
// How keys are cut into chunks depends on the problem alone, and chunks are
// merged in their order: the bits do not depend on the number of workers. work says what
// chunks and rows need.
func (b *Backend) decode(ctx context.Context, c *flashkit.Call, work [2]phase, chunk, merge func(*job, *arena, int)) error {
	j := b.newJob(c)
	d := planDecode(&j.p)
	j.shared.reserve(work[0].items * d.part)
	j.hold(work[:]...)
	j.parallel(ctx, chunk, work[0].items, work[0].floats)
	j.parallel(ctx, merge, work[1].items, work[1].floats)
	return b.release(ctx, j)
}

// A decodeISA is an instruction set for kernels that have the head dim in the
// lanes. The routines are documented where they are declared. They may be given
// workspace and the caller's memory only, as those of a laneISA.
type decodeISA struct {
	*laneISA
	rows  int  // of a register tile
	split int  // elements of a bfloat16 vector, of which the even ones come first; 0 if they keep their order
	tails bool // rows of 16-bit elements need not be whole vectors
	pace  pace // element is a read of 4 bytes, widen one of 2

	attend  [3]attendFunc // by the type that K and V are read in
	weights func(s *float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int)
}

type attendFunc func(s *float32, k *byte, kStep, kAhead int, q *float32, qStep, dim, qRows, kKeys int,
	o *float32, oStep int, idle, p *float32, v *byte, vStep, vAhead, vdim, oRows, vKeys int)

// A decodeItem is the state of a chunk of the keys of a KV head.
type decodeItem struct {
	decodePlan
	b, g int
	as   flashkit.DType // that K and V are read in
	q    []float32      // [rows][qStep]
	s    [2][]float32   // [rows][decodeStep]; a block and the one before have one each
	k, v keyRows
	m, l []float32 // [rows]
	o    []float32 // [rows][oStep]
	idle []float32 // [oStep]
}

func (isa *decodeISA) chunk(j *job, ws *arena, item int) {
	p := &j.p
	d := planDecode(p)
	x := isa.newItem(j, ws, &d, item)
	from, to := d.keysOf(item)
	var before seenKeys
	for from < to && !j.canceled() {
		block := d.cut(p, from, to)
		from += block.n
		if block.rows == 0 {
			continue
		}
		block.s, x.s[0], x.s[1] = x.s[0], x.s[1], x.s[0]
		isa.step(j, &x, block, before)
		isa.weigh(block.s, block.rows, block.n, &x.m[block.row], &x.l[block.row], j.base2, &x.o[block.row*d.oStep], d.oStep)
		before = block
	}
	if before.n > 0 {
		isa.step(j, &x, seenKeys{}, before)
	}
	d.end(x.o, x.l)
}

// newItem loads the query rows of an item.
func (isa *decodeISA) newItem(j *job, ws *arena, d *decodePlan, item int) decodeItem {
	p, q, head := &j.p, &j.args.Q, item/d.chunks
	x := decodeItem{
		decodePlan: *d, b: head / p.KVHeads, g: head % p.KVHeads, as: isa.storage(p),
		q: ws.take((d.rows + decodePad) * d.qStep),
		l: ws.take(d.rows), idle: ws.take(d.oStep),
	}
	x.k = x.keyRows(&j.args.K, ws.take(decodeBlock*p.Dim))
	x.v = x.keyRows(&j.args.V, ws.take(decodeBlock*p.VDim))
	for i := range x.s {
		x.s[i] = ws.take((d.rows + decodePad) * decodeStep)
	}
	x.m, x.o = d.begin(j, item, x.l)
	clear(x.q)
	for r := range d.rows {
		row := x.q[r*d.qStep:][:d.qStep]
		h, i := d.queryOf(x.g, r)
		from := q.Offset(x.b, h, i)
		if x.as == flashkit.BFloat16 {
			split(row, q.Uint16s()[from:][:p.Dim], isa.split)
		} else {
			isa.load(row[:p.Dim], q, from)
		}
	}
	return x
}

// step computes the scores of one block and takes the values of the one before
// into O. Either may have no keys.
func (isa *decodeISA) step(j *job, x *decodeItem, next, before seenKeys) {
	p := &j.p
	var k, v *byte
	var s, w *float32
	if next.n > 0 {
		k, s = x.k.block(isa, x, next), &next.s[0]
	}
	if before.n > 0 {
		v, w = x.v.block(isa, x, before), &before.s[0]
	}
	isa.attend[x.as](s, k, x.k.step, x.k.ahead, &x.q[next.row*x.qStep], x.qStep, p.Dim, next.rows, next.n,
		&x.o[before.row*x.oStep], x.oStep, &x.idle[0], w, v, x.v.step, x.v.ahead, p.VDim, before.rows, before.n)
}

// A keyRows is the rows of K or V of a KV head, which are step bytes apart.
type keyRows struct {
	t           *flashkit.Tensor
	first       unsafe.Pointer // the first key's row, nil if blocks are widened
	step, ahead int
	widened     []float32 // a block
}

// keyRows returns the rows of t that the item reads, where they lie or widened into buf.
func (x *decodeItem) keyRows(t *flashkit.Tensor, buf []float32) keyRows {
	shape, size := t.Shape(), x.as.Size()
	rows := keyRows{t: t, step: shape[3] * size}
	switch {
	case t.DType() != x.as:
		rows.widened = buf
	case x.first < x.last:
		rows.step = rowStep(t) * size
		if x.as == flashkit.Float32 {
			rows.first = unsafe.Pointer(&t.Float32s()[t.Offset(x.b, x.g, 0)])
		} else {
			rows.first = unsafe.Pointer(&t.Uint16s()[t.Offset(x.b, x.g, 0)])
		}
	}
	// Prefetches that run ahead by less come late; by a page, they wait for one another
	// where others use the memory, too. Half a register tile more than whole tiles.
	const ahead, tile = 3072, 4
	rows.ahead = (ahead/(shape[3]*size)/tile*tile + tile/2) * rows.step
	return rows
}

// block returns the first of a block's rows.
func (r *keyRows) block(isa *decodeISA, x *decodeItem, keys seenKeys) *byte {
	if r.widened == nil {
		return (*byte)(unsafe.Add(r.first, keys.from*r.step))
	}
	isa.loadRows(r.widened, r.t.Shape()[3], r.t, x.b, x.g, keys.from, keys.n)
	return (*byte)(unsafe.Pointer(&r.widened[0]))
}

// storage returns the type that K and V are read in: their own, unless they have
// to be widened before.
func (isa *decodeISA) storage(p *flashkit.Problem) flashkit.DType {
	if !isa.tails && (p.Dim%isa.split != 0 || p.VDim%isa.split != 0) {
		return flashkit.Float32
	}
	return p.DType
}

// split widens a row of bfloat16, of each n elements the even ones first.
func split(dst []float32, src []uint16, n int) {
	for ; len(src) >= n; dst, src = dst[n:], src[n:] {
		even, odd, from := dst[:n/2], dst[n/2:n], src[:n]
		for i := range even {
			even[i] = half.FromBF16(from[2*i])
			odd[i] = half.FromBF16(from[2*i+1])
		}
	}
	for i, x := range src {
		dst[i%2*(n/2)+i/2] = half.FromBF16(x)
	}
}

// unsplit undoes the order of split.
func unsplit(row, buf []float32, n int) {
	for ; len(row) >= n; row = row[n:] {
		copy(buf, row[:n])
		for i := range n / 2 {
			row[2*i], row[2*i+1] = buf[i], buf[n/2+i]
		}
	}
}

// weigh is weights for any number of keys: it fills the last vector of each row.
func (isa *decodeISA) weigh(s []float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int) {
	for r := range rows {
		for i := keys; i < pad(keys); i++ {
			s[r*decodeStep+i] = float32(math.Inf(-1))
		}
	}
	isa.weights(&s[0], rows, keys, m, l, scale, o, oStep)
}

// merge writes rows of O and LSE.
func (isa *decodeISA) merge(j *job, ws *arena, item int) {
	d := planDecode(&j.p)
	for row := item * d.merged; row < min((item+1)*d.merged, d.heads*d.rows); row++ {
		ws.reset()
		isa.mergeRow(j, ws, &d, row/d.rows, row%d.rows)
	}
}

func (isa *decodeISA) mergeRow(j *job, ws *arena, d *decodePlan, head, r int) {
	o, idle, s := ws.take(d.oStep), ws.take(d.oStep), ws.take((1+decodePad)*decodeStep)
	m, l := ws.take(1), ws.take(1) // l is of the chunks; that of the keys is in o
	clear(o)
	m[0], l[0] = float32(math.Inf(-1)), 0
	for c := 0; c < d.chunks; c += decodeBlock {
		n := min(decodeBlock, d.chunks-c)
		for i := range n {
			tops, _ := d.result(j, head*d.chunks+c+i)
			s[i] = tops[r]
		}
		isa.weigh(s, 1, n, &m[0], &l[0], j.base2, &o[0], d.oStep)
		_, first := d.result(j, head*d.chunks+c)
		v := (*byte)(unsafe.Pointer(&first[r*d.oStep]))
		isa.attend[flashkit.Float32](nil, nil, 0, 0, nil, 0, 0, 0, 0,
			&o[0], d.oStep, &idle[0], &s[0], v, d.part*4, d.part*4*n, d.oStep, 1, n)
	}
	isa.finishDecode(j, d, head, r, m[0], o, idle)
}

// finishDecode divides once and writes a row.
func (isa *decodeISA) finishDecode(j *job, d *decodePlan, head, r int, m float32, o, buf []float32) {
	p, f, sum := &j.p, j.args, o[d.lColumn]
	if isa.split > 0 && isa.storage(p) == flashkit.BFloat16 {
		unsplit(o[:d.lColumn], buf, isa.split)
	}
	o = o[:p.VDim]
	lse := j.normalize(o, m, sum)
	b := head / p.KVHeads
	h, i := d.queryOf(head%p.KVHeads, r)
	isa.store(&f.O, f.O.Offset(b, h, i), o)
	j.storeLSE(b, h, i, lse)
}
