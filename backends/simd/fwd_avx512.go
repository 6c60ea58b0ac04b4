//go:build amd64 && !noasm && !purego

package simd

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// fwd_avx512 computes what fwd_generic computes, with 32 query rows in the lanes
// of two vectors. Then a key is one row of everything: S, P [keys][32] and
// O transposed [vdim][32] are products of broadcast elements of K and V, read as
// they lie, with vectors of queries; maximum and sum need no shuffle. Only the
// query tile and its output are transposed.
//
// Scores are in base 2: log2(e) is folded into the softmax scale.
//
// An item is up to four tiles of 32 rows of one head that share each block of
// keys while it is in cache, and share the widening of 16-bit keys. Blocks begin
// at multiples of blockK wherever a tile's keys begin, so the bits of a tile do
// not depend on its neighbors in the item.
func (b *Backend) fwdAVX512(ctx context.Context, p flashkit.Problem, f *flashkit.Forward) error {
	j := b.newJob(p)
	j.fwd = *f
	j.group = laneGroup(p)
	perTile := lanes*(pad(p.Dim)+pad(p.VDim)) + 2*lanes
	shared := blockK*(lanes+1) + blockK*(pad(p.Dim)+pad(p.VDim)) + lanes*max(pad(p.Dim), pad(p.VDim)) + 3*lanes
	return b.do(ctx, j, fwdAVX512Item, p.Batch*p.Heads*tiles(p.QLen, j.group*lanes), j.group*perTile+shared)
}

const (
	lanes    = 32  // query rows of a tile
	blockK   = 128 // keys of a block: S takes 16 KiB
	maxGroup = 4   // tiles of an item
)

// fwdAVX512Rate is the multiply-adds of one core, in FLOP/s. It only has to rank
// kernels.
const fwdAVX512Rate = 150e9

func fwdAVX512Cost(p flashkit.Problem) time.Duration {
	return cost(p.FLOPs(flashkit.PassForward), fwdAVX512Rate, p.Batch*p.Heads*tiles(p.QLen, lanes))
}

// laneGroup returns how many tiles make an item: as many as leave each worker
// several items.
func laneGroup(p flashkit.Problem) int {
	const itemsPerWorker = 8
	return max(1, min(maxGroup, p.Batch*p.Heads*tiles(p.QLen, lanes)/(itemsPerWorker*workers())))
}

// pad rounds a head dim up to whole vectors.
func pad(dim int) int { return (dim + 15) &^ 15 }

// A laneTile is 32 query rows, one in each lane.
type laneTile struct {
	from, n int       // its rows; lanes from n on are idle
	q       []float32 // [dim][32], scaled
	o       []float32 // [vdim][32]
	m, l    []float32 // [32]; m in base 2
}

// A laneScratch is the workspace that the tiles of an item share.
type laneScratch struct {
	s       []float32 // [blockK][32]
	masks   [blockK]uint32
	k, v    []float32 // a block of keys, if it must be widened
	rows    []float32 // [32][dim], query rows or output rows
	top     []float32 // [32] each
	hidden  []float32
	factors []float32
}

func fwdAVX512Item(j *job, ws *arena, item int) {
	p, f := &j.p, &j.fwd
	heads, rows := p.Batch*p.Heads, j.group*lanes
	from := (tiles(p.QLen, rows) - 1 - item/heads) * rows
	to := min(from+rows, p.QLen)
	b, h := item%heads/p.Heads, item%p.Heads
	kvHead := h / (p.Heads / p.KVHeads)

	x := laneScratch{
		s: ws.take(blockK * lanes), k: ws.take(blockK * pad(p.Dim)), v: ws.take(blockK * pad(p.VDim)),
		rows: ws.take(lanes * max(pad(p.Dim), pad(p.VDim))),
		top:  ws.take(lanes), hidden: ws.take(lanes), factors: ws.take(lanes),
	}
	var group [maxGroup]laneTile
	n := 0
	for r := from; r < to; r += lanes {
		group[n] = j.newLaneTile(ws, &x, b, h, r, min(lanes, to-r))
		n++
	}
	first, _ := p.Keys(from)
	_, last := p.Keys(to - 1)
	for k0 := first / blockK * blockK; first < last && k0 < last && !j.canceled(); k0 += blockK {
		lo, hi := max(k0, first), min(k0+blockK, last)
		k, kStep := viewAVX512(&f.K, b, kvHead, lo, hi-lo, x.k)
		v, vStep := viewAVX512(&f.V, b, kvHead, lo, hi-lo, x.v)
		for t := range n {
			group[t].absorb(p, &x, k, kStep, v, vStep, lo, hi)
		}
	}
	for t := range n {
		j.finishLanes(&group[t], &x, b, h)
	}
}

// newLaneTile loads, scales and transposes n query rows.
func (j *job) newLaneTile(ws *arena, x *laneScratch, b, h, from, n int) laneTile {
	dim, padded := j.p.Dim, pad(j.p.Dim)
	t := laneTile{from: from, n: n,
		q: ws.take(lanes * padded), o: ws.take(lanes * pad(j.p.VDim)), m: ws.take(lanes), l: ws.take(lanes)}
	clear(t.o)
	clear(t.l)
	for i := range t.m {
		t.m[i] = float32(math.Inf(-1))
	}
	q := &j.fwd.Q
	rows, step := x.rows, padded
	if q.DType() == flashkit.Float32 && n == lanes && dim == padded {
		rows, step = q.Float32s()[q.Offset(b, h, from):], rowStep(q)
	} else {
		clear(rows[:lanes*padded])
		for i := range n {
			loadAVX512(rows[i*padded:][:dim], q, q.Offset(b, h, from+i))
		}
	}
	for i := range 16 {
		x.factors[i] = j.scale * math.Log2E
	}
	for c := 0; c < padded; c += 16 {
		for i := 0; i < lanes; i += 16 {
			transposeAVX512(&t.q[c*lanes+i], lanes, &rows[i*step+c], step, &x.factors[0])
		}
	}
	return t
}

// absorb takes the keys [lo, hi), which begin at k and v, into the tile.
func (t *laneTile) absorb(p *flashkit.Problem, x *laneScratch, k []float32, kStep int, v []float32, vStep, lo, hi int) {
	first, allUntil := p.Keys(t.from) // of the first row, and of the last one
	allFrom, last := p.Keys(t.from + t.n - 1)
	skip := max(first-lo, 0)
	lo, hi = lo+skip, min(hi, last)
	if lo >= hi {
		return
	}
	kp, vp, keys := &k[skip*kStep], &v[skip*vStep], hi-lo
	copy(x.top, t.m)
	if lo >= allFrom && hi <= allUntil {
		scoresAVX512(&x.s[0], kp, kStep, &t.q[0], p.Dim, keys, &x.top[0])
		weightsAVX512(&x.s[0], keys, &t.m[0], &x.top[0], &t.l[0], &x.factors[0])
		addValuesAVX512(&t.o[0], vp, vStep, &x.s[0], keys, p.VDim, &x.factors[0])
		return
	}
	for c := range keys {
		from, to := p.Queries(lo + c)
		from, to = max(from-t.from, 0), min(to-t.from, t.n)
		x.masks[c] = uint32(1<<max(to, from) - 1<<from)
	}
	scoresAVX512(&x.s[0], kp, kStep, &t.q[0], p.Dim, keys, &x.hidden[0]) // its maximum counts hidden keys
	maskScoresAVX512(&x.s[0], &x.masks[0], keys, &x.top[0])
	weightsAVX512(&x.s[0], keys, &t.m[0], &x.top[0], &t.l[0], &x.factors[0])
	addValuesMaskedAVX512(&t.o[0], vp, vStep, &x.s[0], keys, p.VDim, &x.factors[0], &x.masks[0])
}

// finishLanes divides once, transposes back and writes the rows of the tile.
func (j *job) finishLanes(t *laneTile, x *laneScratch, b, h int) {
	o, lse := &j.fwd.O, &j.fwd.LSE
	for i, l := range t.l {
		x.factors[i] = 0 // no key, or none with a score above -Inf
		y := math.Inf(-1)
		if l != 0 {
			x.factors[i] = 1 / l
			y = (float64(t.m[i]) + math.Log2(float64(l))) * math.Ln2
		}
		if i < t.n && !lse.IsZero() {
			lse.Float32s()[lse.Offset(b, h, t.from+i)] = float32(y)
		}
	}
	vdim, padded := j.p.VDim, pad(j.p.VDim)
	rows, step := x.rows, padded
	direct := o.DType() == flashkit.Float32 && t.n == lanes && vdim == padded
	if direct {
		rows, step = o.Float32s()[o.Offset(b, h, t.from):], rowStep(o)
	}
	for c := 0; c < padded; c += 16 {
		for i := 0; i < lanes; i += 16 {
			transposeAVX512(&rows[i*step+c], step, &t.o[c*lanes+i], lanes, &x.factors[i])
		}
	}
	if direct {
		return
	}
	for i := range t.n {
		storeAVX512(o, o.Offset(b, h, t.from+i), rows[i*step:][:vdim])
	}
}

// viewAVX512 is view with vector conversions.
func viewAVX512(t *flashkit.Tensor, b, h, r, n int, buf []float32) (rows []float32, step int) {
	if t.DType() == flashkit.Float32 {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	dim := t.Shape()[3]
	for i := range n {
		loadAVX512(buf[i*dim:][:dim], t, t.Offset(b, h, r+i))
	}
	return buf, dim
}

// loadAVX512 is load with vector conversions.
func loadAVX512(dst []float32, t *flashkit.Tensor, from int) {
	switch t.DType() {
	case flashkit.Float32:
		copy(dst, t.Float32s()[from:])
	case flashkit.Float16:
		widenF16AVX512(&dst[0], &t.Uint16s()[from:][:len(dst)][0], len(dst))
	case flashkit.BFloat16:
		widenBF16AVX512(&dst[0], &t.Uint16s()[from:][:len(dst)][0], len(dst))
	}
}

// storeAVX512 is store with vector conversions.
func storeAVX512(t *flashkit.Tensor, to int, src []float32) {
	switch t.DType() {
	case flashkit.Float32:
		copy(t.Float32s()[to:], src)
	case flashkit.Float16:
		narrowF16AVX512(&t.Uint16s()[to:][:len(src)][0], &src[0], len(src))
	case flashkit.BFloat16:
		narrowBF16AVX512(&t.Uint16s()[to:][:len(src)][0], &src[0], len(src))
	}
}
