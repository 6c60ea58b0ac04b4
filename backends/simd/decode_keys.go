//go:build (amd64 || arm64) && !noasm && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A keyRows is the rows of K or V of a KV head. They are read where they lie, unless they
// have to be widened: then a block of them is copied.
type keyRows struct {
	t        *flashkit.Tensor
	first    unsafe.Pointer // the first key's row, or that of page 0; nil if rows are widened
	bytes    int            // of a row
	step     int            // bytes from one row to the next
	tiles    int            // keys that prefetches run ahead
	page     int            // keys of a page; 0: not paged
	pages    []int32        // of the sequence
	pageStep int            // bytes from one page to the next
	at       [2][]int       // bytes from the first row to those in pages; a block and the one before have one each
	buf      []float32      // room for the rows of a block
}

// Prefetches that run ahead by less bytes come late; by a page of memory, they wait for one
// another where others use the memory, too. Half a register tile more than whole tiles.
const aheadBytes, tileKeys = 3072, 4

// aheadKeys returns how many rows of so many bytes prefetches run ahead.
func aheadKeys(bytes int) int { return aheadBytes/bytes/tileKeys*tileKeys + tileKeys/2 }

// keyFloats returns the workspace of the rows of K or V.
func keyFloats(c *flashkit.Call, dim int) int {
	if c.Page == 0 {
		return decodeBlock * dim
	}
	const floats = 2 * 2 // of two places
	return decodeBlock*dim + floats*(decodeBlock+aheadKeys(2*dim)+tileKeys)
}

// set makes r the rows of t that an item reads.
func (r *keyRows) set(j *job, ws *arena, x *decodeItem, t *flashkit.Tensor) {
	dim, size := t.Shape()[3], x.as.Size()
	r.t, r.bytes, r.step, r.page, r.buf = t, dim*size, rowStep(t)*size, j.p.Page, ws.take(decodeBlock*dim)
	if x.first == x.last {
		return
	}
	r.tiles = aheadKeys(r.bytes)
	batch, row := x.KVBatch, x.K0
	if r.page > 0 {
		all := j.args.Seqs.Pages
		width := len(all) / j.p.Batch
		r.pages, r.pageStep = all[x.b*width:][:width], t.Strides()[0]*size
		n := decodeBlock + r.tiles + tileKeys
		for i := range r.at {
			r.at[i] = unsafe.Slice((*int)(unsafe.Pointer(&ws.take(2 * n)[0])), n)
		}
		batch, row = 0, 0
	}
	switch {
	case t.DType() != x.as:
		return
	case x.as == flashkit.Float32:
		r.first = unsafe.Pointer(unsafe.SliceData(t.Float32s()))
	default:
		r.first = unsafe.Pointer(unsafe.SliceData(t.Uint16s()))
	}
	r.first = unsafe.Add(r.first, t.Offset(batch, x.g, row)*size)
}

// A rowsAt is rows that lie step bytes apart, unless a table says where they are, and how many bytes
// further those are that are prefetched.
type rowsAt struct {
	first       *byte
	step, ahead int
}

// block returns the rows of a block.
func (r *keyRows) block(isa *decodeISA, j *job, x *decodeItem, keys seenKeys) rowsAt {
	switch {
	case r.first == nil:
		r.copy(isa.laneISA, j, &x.itemOfKeys, 0, keys.from, keys.n)
		return rowsAt{(*byte)(unsafe.Pointer(&r.buf[0])), r.bytes, r.tiles * r.bytes}
	case r.page > 0:
		return rowsAt{first: (*byte)(r.first)}
	}
	return rowsAt{(*byte)(unsafe.Add(r.first, keys.from*r.step)), r.step, r.tiles * r.step}
}

// find sets where the rows of a block are that lie in pages.
func (x *decodeItem) find(keys *seenKeys) {
	if x.k.page == 0 || x.k.first == nil {
		return
	}
	keys.kAt = x.k.find(keys, x.last)
	if keys.vAt = keys.kAt; x.k.step != x.v.step || x.k.pageStep != x.v.pageStep {
		keys.vAt = x.v.find(keys, x.last)
	}
}

// find returns the places of the rows of a block, and of those after it, up to the last key.
func (r *keyRows) find(keys *seenKeys, last int) *int {
	r.at[0], r.at[1] = r.at[1], r.at[0]
	page, row, places := keys.from/r.page, keys.from%r.page, r.at[0][:keys.n+r.tiles+tileKeys]
	n := min(len(places), last-keys.from)
	for i := 0; i < n; page, row = page+1, 0 {
		place := int(r.pages[page])*r.pageStep + row*r.step
		run := places[i:min(n, i+r.page-row)]
		for k := range run {
			run[k] = place
			place += r.step
		}
		i += len(run)
	}
	for i := n; i < len(places); i++ { // there is none to prefetch
		places[i] = places[n-1]
	}
	return &places[0]
}

// address returns the place of a key's row.
func (r *keyRows) address(j int) unsafe.Pointer {
	if r.page == 0 {
		return unsafe.Add(r.first, j*r.step)
	}
	return unsafe.Add(r.first, int(r.pages[j/r.page])*r.pageStep+j%r.page*r.step)
}

// copy copies n rows to the buffer, where they are those from a given one on.
func (r *keyRows) copy(isa *laneISA, j *job, x *itemOfKeys, to, from, n int) {
	dim := r.t.Shape()[3]
	for end := from + n; from < end; {
		run := end - from
		if r.page > 0 {
			run = min(run, r.page-from%r.page)
		}
		if r.first == nil {
			batch, row := x.place(j, from)
			isa.loadRows(r.buf[to*dim:], dim, r.t, batch, x.g, row, run)
		} else {
			src := r.address(from)
			for i := range run {
				dst := unsafe.Add(unsafe.Pointer(&r.buf[0]), (to+i)*r.bytes)
				copy(unsafe.Slice((*byte)(dst), r.bytes), unsafe.Slice((*byte)(unsafe.Add(src, i*r.step)), r.bytes))
			}
		}
		from, to = from+run, to+run
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
