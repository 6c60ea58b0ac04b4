package simd

import (
	"slices"
	"sort"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// An itemTable finds the sequence, the head and the tile of an item. Sequences of equal
// lengths share a span; others have one each.
type itemTable struct {
	itemOrder
	size  int // query rows, or keys, of a tile
	spans []itemSpan
}

// An itemOrder is the order of the items of a table.
type itemOrder struct {
	heads        int  // of a sequence
	turns        int  // neighboring heads that take turns, tile by tile; 0: all heads of a span
	longestFirst bool // spans with the longest items come first, else they are in the order of the sequences
	lastFirst    bool // the last tile of a head comes first
}

// An itemSpan is the items of one sequence, or of all sequences if they are equal.
type itemSpan struct {
	b      int // the sequence, or the first of all
	heads  int // of all sequences of the span
	tiles  int // of a head
	turns  int // heads that take turns
	length int // of its items, in rows or keys of the other side
	counts     // of the spans before it
}

// counts are the items of spans. Split KV has items that merge chunks, too, and floats of the chunks' results.
type counts struct{ items, merges, results int }

func (c *counts) add(x counts) {
	c.items += x.items
	c.merges += x.merges
	c.results = count(float64(c.results) + float64(x.results))
}

// place returns the number of the span of an item.
func (t *itemTable) place(item int) int {
	if len(t.spans) == 1 {
		return 0
	}
	return sort.Search(len(t.spans), func(i int) bool { return t.spans[i].items > item }) - 1
}

// span returns the span of an item.
func (t *itemTable) span(item int) *itemSpan { return &t.spans[t.place(item)] }

// mergeSpan returns the span of an item that merges chunks.
func (t *itemTable) mergeSpan(item int) *itemSpan {
	return &t.spans[sort.Search(len(t.spans), func(i int) bool { return t.spans[i].merges > item })-1]
}

// find returns the sequence, the head and the tile of an item.
func (t *itemTable) find(item int) (b, head, tile int) {
	s := t.span(item)
	item -= s.items
	first := item / (s.turns * s.tiles) * s.turns
	item -= first * s.tiles
	turns := min(s.turns, s.heads-first)
	head, tile = first+item%turns, item/turns
	if t.lastFirst {
		tile = s.tiles - 1 - tile
	}
	return s.b + head/t.heads, head % t.heads, tile
}

// index returns the item of a tile in a table of sequences in order, whose heads take no turns.
func (t *itemTable) index(b, head, tile int) int {
	if len(t.spans) == 1 {
		return (b*t.heads+head)*t.spans[0].tiles + tile
	}
	return t.spans[b].items + head*t.spans[b].tiles + tile
}

// reset empties t, with room for n spans.
func (t *itemTable) reset(o itemOrder, size, n int) {
	if t.itemOrder, t.size, t.spans = o, size, t.spans[:0]; cap(t.spans) < n {
		t.spans = make([]itemSpan, 0, n)
	}
}

// arrange puts the spans in order and numbers their items.
func (t *itemTable) arrange() {
	if t.longestFirst {
		slices.SortFunc(t.spans, func(x, y itemSpan) int {
			if x.length != y.length {
				return y.length - x.length
			}
			return x.b - y.b
		})
	}
	var before counts
	for i := range t.spans {
		own := t.spans[i].counts
		t.spans[i].counts = before
		before.add(own)
	}
}

// cut makes t the table of tiles of the query rows, or of the keys, of all sequences.
func (t *itemTable) cut(pl *plan, rows bool, size int, o itemOrder) {
	t.reset(o, size, pl.sequences())
	for b := range pl.sequences() {
		n, room, other := pl.side(b, rows)
		s := itemSpan{b: b, heads: o.heads * pl.alike(), tiles: tilesOf(n, room, size), length: other}
		s.items = s.heads * s.tiles
		if s.turns = o.turns; o.turns == 0 {
			s.turns = s.heads
		}
		t.spans = append(t.spans, s)
	}
	t.arrange()
}

// tableBytes returns the memory of the tables.
func (pl *plan) tableBytes() float64 {
	return float64(pl.tables) * float64(pl.sequences()) * float64(unsafe.Sizeof(itemSpan{}))
}

// sequences returns how many sequences have a span.
func (pl *plan) sequences() int {
	if pl.ragged {
		return pl.p.Batch
	}
	return min(1, pl.p.Batch)
}

// alike returns how many sequences share a span.
func (pl *plan) alike() int {
	if pl.ragged {
		return 1
	}
	return pl.p.Batch
}

// side returns the query rows, or the keys, of sequence b, for how many the tensors have
// room, and the length of the other side.
func (pl *plan) side(b int, rows bool) (n, room, other int) {
	q, kv := pl.p.QLen, pl.p.KVLen
	if pl.ragged {
		s := pl.call.Seq(b)
		q, kv = s.N, s.M
	}
	if rows {
		return q, pl.rowRoom(q), kv
	}
	return kv, pl.keyRoom(kv), q
}

// rowRoom returns the rows that tensors have for a sequence of n query rows.
func (pl *plan) rowRoom(n int) int {
	if pl.call.Traits.PackedQ && !pl.portable.ownBias {
		return n
	}
	return pl.p.QLen
}

// keyRoom returns the rows that tensors have for a sequence of n keys.
func (pl *plan) keyRoom(n int) int {
	if pl.call.Traits.PackedKV {
		return n
	}
	return pl.p.KVLen
}

// tilesOf returns the tiles of n rows: at least one where tensors have room for more rows,
// which that tile clears.
func tilesOf(n, room, size int) int {
	if n == 0 && room > 0 {
		return 1
	}
	return ceilDiv(n, size)
}

// rowTiles returns the tiles of query rows of one head of every sequence.
func (pl *plan) rowTiles(size int) int { return pl.sideTiles(size, true) }

// keyTiles returns the tiles of keys of one head of every sequence.
func (pl *plan) keyTiles(size int) int { return pl.sideTiles(size, false) }

func (pl *plan) sideTiles(size int, rows bool) int {
	sum := 0
	for b := range pl.sequences() {
		n, room, _ := pl.side(b, rows)
		sum += tilesOf(n, room, size)
	}
	return sum * pl.alike()
}

// A seqTile is the query rows, or the keys, [from, to) of a head of sequence b. The rows
// [to, end) are padding of the tensors.
type seqTile struct {
	flashkit.Seq
	b, h, g       int // h is the query head
	from, to, end int
}

// tileOf returns a tile of sequence b, query head h and KV head g without rows or keys.
func (pl *plan) tileOf(b, h, g int) seqTile { return seqTile{Seq: pl.call.Seq(b), b: b, h: h, g: g} }

// setRows makes t up to n query rows. The last ones bring the padding.
func (t *seqTile) setRows(pl *plan, from, n int) {
	t.from, t.to = from, max(from, min(from+n, t.N))
	if t.end = t.to; t.to == t.N {
		t.end = pl.rowRoom(t.N)
	}
}

// setKeys makes t up to n keys. The last ones bring the padding.
func (t *seqTile) setKeys(pl *plan, from, n int) {
	t.from, t.to = from, max(from, min(from+n, t.M))
	if t.end = t.to; t.to == t.M {
		t.end = pl.keyRoom(t.M)
	}
}

// findRows makes t the query rows of an item, of its first head, and returns the number of the tile in that head.
func (t *seqTile) findRows(pl *plan, item int) (tile int) {
	b, head, tile := pl.byRow.find(item)
	h := head * pl.headsPerItem
	t.b, t.h, t.g, t.Seq = b, h, h/(pl.p.Heads/pl.p.KVHeads), pl.call.Seq(b)
	t.setRows(pl, tile*pl.byRow.size, pl.byRow.size)
	return tile
}

// findKeys makes t the keys of an item.
func (t *seqTile) findKeys(pl *plan, item int) {
	b, g, tile := pl.byKey.find(item)
	t.b, t.h, t.g, t.Seq = b, 0, g, pl.call.Seq(b)
	t.setKeys(pl, tile*pl.byKey.size, pl.byKey.size)
}
