//go:build (amd64 || arm64) && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// ahead is a stack of spans to prefetch into L2 while scores are computed. The last span added is
// the first prefetched.
type ahead struct {
	spans [8]span
	n     int
	kept  int // number of spans that clear keeps: they were added first
}

// span is a range of memory to prefetch. Its first taken bytes were already prefetched.
type span struct {
	from         unsafe.Pointer
	bytes, taken int // size, and the size of the part that was prefetched
}

// clear drops all spans but the first a.kept.
func (a *ahead) clear() { a.n = a.kept }

// keep protects the current spans from clear. These spans are prefetched after all spans that are
// added later.
func (a *ahead) keep() { a.kept = a.n }

// add pushes rows [r, r+n) of a head of t, unless the rows have gaps between them in memory.
func (a *ahead) add(t *flashkit.Tensor, b, h, r, n int) {
	dim := t.Shape()[3]
	if n <= 0 || rowStep(t) != dim {
		return
	}
	switch at := t.Offset(b, h, r); t.DType() {
	case flashkit.Float32:
		a.addFloats(t.Float32s()[at:][:n*dim])
	case flashkit.Int8:
		a.push(unsafe.Pointer(&t.Int8s()[at:][:n*dim][0]), n*dim)
	default:
		a.push(unsafe.Pointer(&t.Uint16s()[at:][:n*dim][0]), 2*n*dim)
	}
}

func (a *ahead) addFloats(x []float32) { a.push(unsafe.Pointer(&x[0]), 4*len(x)) }

func (a *ahead) push(from unsafe.Pointer, bytes int) {
	a.spans[a.n] = span{from: from, bytes: bytes}
	a.n++
}

// take returns the address of the next bytes to prefetch, for a routine that computes dot products
// of n rows of dim elements. The routine prefetches 2*dim bytes per row, so take counts 2*n*dim
// bytes as prefetched. If nothing remains to be prefetched, take returns the argument rows. At
// least one float32 can be read at the returned address.
func (a *ahead) take(n, dim int, rows *float32) *float32 {
	for ; a.n > 0; a.n-- {
		if s := &a.spans[a.n-1]; s.taken+4 <= s.bytes {
			p := unsafe.Add(s.from, s.taken)
			s.taken += 2 * n * dim
			return (*float32)(p)
		}
	}
	return rows
}

// fetchNextTile queues prefetches of Q and dO for the tile after tile t of head h. In the last
// tiles of a block, it also queues dK and dV of this block, and K and V of the block that the
// worker will probably take next.
func (isa *laneRoutines) fetchNextTile(j *job, x *keyBlock, h, t int) {
	const tilesBefore = 8 // dK, dV, K and V are prefetched during the last tilesBefore tiles of a block
	p, f := &j.p, j.args
	first, _ := j.visited(&x.seqTile)
	lastHead := (x.g+1)*(p.Heads/p.KVHeads) - 1
	x.ahead.clear()
	if h == lastHead && t < first+tilesBefore && x.ahead.kept == 0 {
		if next, ok := j.Next(); ok {
			var y seqTile
			y.findKeys(&j.plan, next)
			x.ahead.add(&f.V, y.KVBatch, y.g, y.K0+y.from, y.to-y.from)
			x.ahead.add(&f.K, y.KVBatch, y.g, y.K0+y.from, y.to-y.from)
		}
		x.ahead.add(&f.DV, x.KVBatch, x.g, x.K0+x.from, x.to-x.from)
		x.ahead.add(&f.DK, x.KVBatch, x.g, x.K0+x.from, x.to-x.from)
		x.ahead.keep()
	}
	h, t, ok := j.after(&x.keyRange, h, t)
	if !ok {
		return
	}
	from := t * j.rows
	n := min(j.rows, x.N-from)
	x.ahead.add(&f.DO, x.QBatch, h, x.Q0+from, n)
	x.ahead.add(&f.Q, x.QBatch, h, x.Q0+from, n)
}
