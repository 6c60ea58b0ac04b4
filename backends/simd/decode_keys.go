//go:build (amd64 || arm64) && !purego

package simd

import (
	"cmp"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// keyRows is the rows of K or V that an item reads. The rows are read in place, unless their
// elements must be widened. Then each block is widened into buf.
type keyRows struct {
	t        *flashkit.Tensor
	scale    *flashkit.Tensor // scales of t, if t is Int8
	group    int              // elements of t that share a scale
	first    unsafe.Pointer   // row 0 of the sequence, or of page 0, in KV head 0; nil if rows are widened
	headStep int              // bytes from one KV head to the next
	bytes    int              // of a row
	step     int              // bytes from one row to the next
	tiles    int              // prefetch distance in keys
	ahead    int              // prefetch distance in bytes; 0: prefetch the rows that places lists, tiles entries later
	page     int              // keys of a page; 0 without pages
	pages    []int32          // page table of the sequence
	pageStep int              // bytes from one page to the next
	table    []int            // offsets of a block's rows from the block's first row; unused if inPages
	at       [2]places        // if inPages: offsets of the rows of the current block, and of the block before
	buf      []float32        // widened rows of a block
}

// places has the offsets of a block's rows in pages, followed by the offsets of the rows to
// prefetch. All offsets are relative to the head's rows in page 0.
type places struct {
	last  []int // for the item's last head: it prefetches the next block of the first head
	other []int // for the other heads: they prefetch the same block of the next head
}

// Prefetch distances: aheadBytes bytes, or aheadPaged bytes for rows in pages, which the hardware
// prefetcher does not follow. At shorter distances, rows arrive too late. At a distance of one page
// of virtual memory, prefetches wait for one another while other cores use the memory. In keys, a
// distance is a number of register tiles of tileKeys keys, plus half a tile.
//
// A row in a page is prefetched several times. The distance of the last prefetch is nearestKeys
// keys less than the distance of the first prefetch, and may be negative. So tables of places have
// nearestKeys entries before the block's first row.
const aheadBytes, aheadPaged, tileKeys, nearestKeys = 3072, 6144, 4, 16

// aheadKeys returns the prefetch distance in keys, for rows of the given number of bytes.
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

// keyFloats returns the workspace of a keyRows with rows of dim elements, in floats.
func keyFloats(c *flashkit.Call, dim int) int {
	const floats = 2 // size of an int
	if c.Page == 0 {
		return decodeBlock * (dim + floats)
	}
	const tables = 4
	return decodeBlock*dim + tables*floats*placesOf(aheadKeys(2*dim, c.Page))
}

// placesOf returns the length of a table of places with a prefetch distance of ahead keys.
func placesOf(ahead int) int { return nearestKeys + decodeBlock + ahead + tileKeys }

// set sets r to the rows of t that an item reads.
func (r *keyRows) set(j *job, ws *pool.Arena, x *decodeItem, t *flashkit.Tensor) {
	dim, size := t.Shape()[3], x.as.Size()
	r.t, r.bytes, r.step, r.page, r.buf = t, dim*size, rowStep(t)*size, j.p.Page, ws.Take(decodeBlock*dim)
	r.headStep = t.Strides()[1] * size
	r.scale, r.group = j.scaleOf(t), j.p.Int8Group
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

// setStrided sets the table of offsets for rows step bytes apart. All blocks share this table.
func (r *keyRows) setStrided(ws *pool.Arena, step, keys int) {
	r.ahead = cmp.Or(r.tiles*step, aheadBytes) // not 0: the table has no rows to prefetch
	r.table = takeInts(ws, decodeBlock)[:keys]
	place := 0
	for i := range r.table {
		r.table[i] = place
		place += step
	}
}

// block returns the address to which the block's offsets are relative. It widens the block's rows if
// they are not read in place.
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

// inPages reports whether rows are read in place in pages. Each block then has its own places.
func (r *keyRows) inPages() bool { return r.page > 0 && r.first != nil }

func (p *places) of(isLast bool) *int {
	if isLast {
		return &p.last[nearestKeys]
	}
	return &p.other[nearestKeys]
}

// find sets r.at[0] to the places of a block, for an item with the given number of heads. Rows from
// key last on are not prefetched.
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

// locate sets the slice at to the offsets of the rows from the given key on.
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

// widen widens the rows of keys [from, from+n) into r.buf.
func (r *keyRows) widen(isa *laneRoutines, j *job, x *itemOfKeys, from, n int) {
	dim := r.t.Shape()[3]
	for buf, end := r.buf, from+n; from < end; {
		batch, row, run := j.keyPlace(&x.Seq, x.b, from)
		run = min(run, end-from)
		r.load(isa, buf, batch, x.g, row, run)
		from, buf = from+run, buf[run*dim:]
	}
}

// load widens n rows of a head to rows of dst without gaps.
func (r *keyRows) load(isa *laneRoutines, dst []float32, batch, g, row, n int) {
	if r.group != 0 {
		isa.dequantizeRows(dst, r.t, r.scale, batch, g, row, n, r.group)
		return
	}
	isa.loadRows(dst, r.t.Shape()[3], r.t, batch, g, row, n)
}

// place returns the index of a key's sequence or page in the first dimension of K and V, and the
// key's row there.
func (x *itemOfKeys) place(j *job, key int) (batch, row int) {
	batch, row, _ = j.keyPlace(&x.Seq, x.b, key)
	return batch, row
}
