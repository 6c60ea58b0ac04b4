//go:build (amd64 || arm64) && !purego

package simd

import (
	"cmp"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// A keyRows is the rows of K or V of a KV head. They are read where they lie, unless they
// have to be widened: then a block of them is copied.
type keyRows struct {
	t        *flashkit.Tensor
	first    unsafe.Pointer // KV head 0's row of the first key, or of page 0; nil if rows are widened
	headStep int            // bytes from one KV head to the next
	bytes    int            // of a row
	step     int            // bytes from one row to the next
	tiles    int            // keys that prefetches run ahead
	ahead    int            // the same in bytes; 0: the places say where
	page     int            // keys of a page; 0: not paged
	pages    []int32        // of the sequence
	pageStep int            // bytes from one page to the next
	table    []int          // bytes from a block's first row to the others, but in pages
	at       [2]places      // bytes from the first row to those in pages; a block and the one before have one each
	buf      []float32      // room for the rows of a block
}

// A places is where the rows of a block are, and those of what comes after it.
type places struct {
	last  []int // of the last head that takes turns: then come the next block's of the first one
	other []int // of one before it: then come the next one's
}

// Prefetches that run ahead by less bytes come late; by a page of memory, they wait for one
// another where others use the memory, too. Half a register tile more than whole tiles. Those of
// pages have no stream of the processor's own beside them, and run further ahead. They may come more
// than once, the last time nearestKeys before the first: a table has as many places before its own.
const aheadBytes, aheadPaged, tileKeys, nearestKeys = 3072, 6144, 4, 16

// aheadKeys returns how many rows of so many bytes prefetches run ahead.
func aheadKeys(bytes, page int) int {
	const longRow = 1024
	switch {
	case page == 0:
		return aheadBytes/bytes/tileKeys*tileKeys + tileKeys/2
	case bytes <= longRow:
		return max(aheadPaged/bytes, nearestKeys+tileKeys)/tileKeys*tileKeys + tileKeys/2
	}
	return aheadPaged/bytes/tileKeys*tileKeys + tileKeys/2
}

// keyFloats returns the workspace of the rows of K or V.
func keyFloats(c *flashkit.Call, dim int) int {
	const floats = 2 // of a place
	if c.Page == 0 {
		return decodeBlock * (dim + floats)
	}
	const tables = 4
	return decodeBlock*dim + tables*floats*placesOf(aheadKeys(2*dim, c.Page))
}

// placesOf returns the length of a table of places of rows, of which so many are prefetched ahead.
func placesOf(ahead int) int { return nearestKeys + decodeBlock + ahead + tileKeys }

// set makes r the rows of t that an item reads.
func (r *keyRows) set(j *job, ws *pool.Arena, x *decodeItem, t *flashkit.Tensor) {
	dim, size := t.Shape()[3], x.as.Size()
	r.t, r.bytes, r.step, r.page, r.buf = t, dim*size, rowStep(t)*size, j.p.Page, ws.Take(decodeBlock*dim)
	r.headStep = t.Strides()[1] * size
	h := &x.one
	if h.first == h.last {
		return
	}
	r.tiles = aheadKeys(r.bytes, r.page)
	keys := min(decodeBlock, h.last-h.first)
	batch, row := h.KVBatch, h.K0
	if r.page > 0 {
		all := j.args.Seqs.Pages
		width := len(all) / j.p.Batch
		r.pages, r.pageStep = all[h.b*width:][:width], t.Strides()[0]*size
		batch, row = 0, 0
	}
	switch {
	case t.DType() != x.as:
		r.setStrided(ws, r.bytes, keys)
		return
	case x.as == flashkit.Float32:
		r.first = unsafe.Pointer(unsafe.SliceData(t.Float32s()))
	default:
		r.first = unsafe.Pointer(unsafe.SliceData(t.Uint16s()))
	}
	r.first = unsafe.Add(r.first, t.Offset(batch, 0, row)*size)
	if !r.inPages() {
		r.setStrided(ws, r.step, keys)
		return
	}
	n := placesOf(r.tiles)
	for i := range r.at {
		all := takeInts(ws, 2*n)
		r.at[i] = places{all[:n], all[n:]}
	}
}

// setStrided sets the places of rows that are step bytes apart: every block has the same.
func (r *keyRows) setStrided(ws *pool.Arena, step, keys int) {
	r.ahead = cmp.Or(r.tiles*step, aheadBytes) // 0 would mean that the table has places of later blocks
	r.table = takeInts(ws, decodeBlock)[:keys]
	place := 0
	for i := range r.table {
		r.table[i] = place
		place += step
	}
}

// block returns the row of a KV head that a block's places count from.
func (r *keyRows) block(isa *laneISA, j *job, h *itemOfKeys, keys seenKeys) unsafe.Pointer {
	switch {
	case r.first == nil:
		r.widen(isa, j, h, keys.from, keys.n)
		return unsafe.Pointer(&r.buf[0])
	case r.page > 0:
		return unsafe.Add(r.first, h.g*r.headStep)
	}
	return unsafe.Add(r.first, h.g*r.headStep+keys.from*r.step)
}

// inPages reports whether rows are read in pages, so that each block has places of its own.
func (r *keyRows) inPages() bool { return r.page > 0 && r.first != nil }

func (p *places) of(isLast bool) *int {
	if isLast {
		return &p.last[nearestKeys]
	}
	return &p.other[nearestKeys]
}

// find finds the rows of a block, and of those after it, up to the last key, for so many heads.
func (r *keyRows) find(keys *seenKeys, last, heads int) {
	r.at[0], r.at[1] = r.at[1], r.at[0]
	before, at := r.at[0].last[:nearestKeys], r.at[0].last[nearestKeys:][:keys.n+r.tiles+tileKeys]
	n := min(len(at), last-keys.from)
	r.locate(at[:n], keys.from)
	for i := range before {
		before[i] = at[0]
	}
	for i := n; i < len(at); i++ { // there is none to prefetch
		at[i] = at[n-1]
	}
	if heads == 1 {
		return
	}
	copy(r.at[0].other, before)
	other := r.at[0].other[nearestKeys:][:len(at)]
	copy(other, at[:keys.n])
	for i := keys.n; i < len(at); i++ {
		other[i] = at[min(i-keys.n, keys.n-1)] + r.headStep
		at[i] -= (heads - 1) * r.headStep
	}
}

// locate sets at to where rows are, from a given key on.
func (r *keyRows) locate(at []int, key int) {
	page, row := key/r.page, key%r.page
	for ; len(at) > 0; page, row = page+1, 0 {
		place := int(r.pages[page])*r.pageStep + row*r.step
		run := at[:min(len(at), r.page-row)]
		for k := range run {
			run[k] = place
			place += r.step
		}
		at = at[len(run):]
	}
}

// widen widens n rows, from a given key on, to the buffer.
func (r *keyRows) widen(isa *laneISA, j *job, x *itemOfKeys, from, n int) {
	dim := r.t.Shape()[3]
	for buf, end := r.buf, from+n; from < end; {
		run := end - from
		if r.page > 0 {
			run = min(run, r.page-from%r.page)
		}
		batch, row := x.place(j, from)
		isa.loadRows(buf, dim, r.t, batch, x.g, row, run)
		from, buf = from+run, buf[run*dim:]
	}
}

// place returns the batch, or the page, and the row in it where a key lies.
func (x *itemOfKeys) place(j *job, key int) (batch, row int) {
	if j.p.Page == 0 {
		return x.KVBatch, x.K0 + key
	}
	all := j.args.Seqs.Pages
	return int(all[x.b*(len(all)/j.p.Batch)+key/j.p.Page]), key % j.p.Page
}
