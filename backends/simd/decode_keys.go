//go:build (amd64 || arm64) && !purego

package simd

import (
	"cmp"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// keyRows is the rows of K or V of a KV head, read in place. A block of rows that must be widened
// is copied.
type keyRows struct {
	t        *flashkit.Tensor
	first    unsafe.Pointer // the first key's row, or page 0's, of KV head 0; nil if rows are widened
	headStep int            // bytes from one KV head to the next
	bytes    int            // of a row
	step     int            // bytes from one row to the next
	tiles    int            // prefetch distance in keys
	ahead    int            // prefetch distance in bytes; 0: take the addresses from places
	page     int            // keys of a page; 0 without pages
	pages    []int32        // of the sequence
	pageStep int            // bytes from one page to the next
	table    []int          // offsets of a block's rows from its first, unless in pages
	at       [2]places      // offsets of rows in pages: of the current block and of the one before
	buf      []float32      // widened rows of a block
}

// places are the offsets of a block's rows, and of the rows to prefetch after them.
type places struct {
	last  []int // of the last head: the next block of the first head follows
	other []int // of an earlier head: the next head follows
}

// Prefetch distances. Shorter ones come late; one of a memory page makes prefetches wait for one
// another while others use the memory. Distances in keys are whole register tiles and a half. Rows
// in pages run further ahead, since the hardware prefetcher does not follow them. Their prefetches
// may repeat, the last time nearestKeys before the first row, so tables have nearestKeys entries in
// front.
const aheadBytes, aheadPaged, tileKeys, nearestKeys = 3072, 6144, 4, 16

// aheadKeys returns the prefetch distance in rows, for rows of the given bytes.
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
	const floats = 2 // of an int
	if c.Page == 0 {
		return decodeBlock * (dim + floats)
	}
	const tables = 4
	return decodeBlock*dim + tables*floats*placesOf(aheadKeys(2*dim, c.Page))
}

// placesOf returns the length of a table of places with a prefetch distance of ahead rows.
func placesOf(ahead int) int { return nearestKeys + decodeBlock + ahead + tileKeys }

// set sets r to the rows of t that an item reads.
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

// setStrided sets the offsets of rows step bytes apart, which all blocks share.
func (r *keyRows) setStrided(ws *pool.Arena, step, keys int) {
	r.ahead = cmp.Or(r.tiles*step, aheadBytes) // not 0: the table has no later blocks
	r.table = takeInts(ws, decodeBlock)[:keys]
	place := 0
	for i := range r.table {
		r.table[i] = place
		place += step
	}
}

// block returns the base address of the block's offsets.
func (r *keyRows) block(isa *laneRoutines, j *job, h *itemOfKeys, keys seenKeys) unsafe.Pointer {
	switch {
	case r.first == nil:
		r.widen(isa, j, h, keys.from, keys.n)
		return unsafe.Pointer(&r.buf[0])
	case r.page > 0:
		return unsafe.Add(r.first, h.g*r.headStep)
	}
	return unsafe.Add(r.first, h.g*r.headStep+keys.from*r.step)
}

// inPages reports whether rows are read in pages, so that each block has its own places.
func (r *keyRows) inPages() bool { return r.page > 0 && r.first != nil }

func (p *places) of(isLast bool) *int {
	if isLast {
		return &p.last[nearestKeys]
	}
	return &p.other[nearestKeys]
}

// find sets the places of a block's rows and of the rows to prefetch, up to key last, for the given
// number of heads.
func (r *keyRows) find(keys *seenKeys, last, heads int) {
	r.at[0], r.at[1] = r.at[1], r.at[0]
	before, at := r.at[0].last[:nearestKeys], r.at[0].last[nearestKeys:][:keys.n+r.tiles+tileKeys]
	n := min(len(at), last-keys.from)
	r.locate(at[:n], keys.from)
	for i := range before {
		before[i] = at[0]
	}
	for i := n; i < len(at); i++ { // no row is left to prefetch
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

// locate sets at to the offsets of rows from the given key on.
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

// widen widens rows [from, from+n) into the buffer.
func (r *keyRows) widen(isa *laneRoutines, j *job, x *itemOfKeys, from, n int) {
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

// place returns the batch, or page, of a key, and its row there.
func (x *itemOfKeys) place(j *job, key int) (batch, row int) {
	if j.p.Page == 0 {
		return x.KVBatch, x.K0 + key
	}
	all := j.args.Seqs.Pages
	return int(all[x.b*(len(all)/j.p.Batch)+key/j.p.Page]), key % j.p.Page
}
