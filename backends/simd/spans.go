package simd

import (
	"slices"
	"sort"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A headSpan is items that follow each other: as many tiles for each of its heads.
type headSpan struct {
	b     int // the sequence, or the first of all
	first int // item
	heads int // of all its sequences
	tiles int // of a head
	met   int // rows, or keys, of the other side
}

// A spanTable finds the tile of query rows, or of keys, of an item. Where all sequences
// are equal they are one span; else each has its own.
type spanTable struct {
	heads int // of a sequence
	all   headSpan
	spans []headSpan
}

// find returns the span of an item.
func (t *spanTable) find(item int) headSpan {
	if len(t.spans) == 0 {
		return t.all
	}
	return t.spans[sort.Search(len(t.spans), func(i int) bool { return t.spans[i].first > item })-1]
}

// index returns the item of a tile where a head's tiles follow each other, and
// sequences are in order.
func (t *spanTable) index(b, h, tile int) int {
	if len(t.spans) == 0 {
		return (b*t.heads+h)*t.all.tiles + tile
	}
	return t.spans[b].first + h*t.spans[b].tiles + tile
}

// tilesOf returns the tiles of size that n rows of a tensor with place for so many take.
// Where that is more than n, at least one, which clears the rest.
func tilesOf(n, place, size int) int {
	if n == 0 && place > 0 {
		return 1
	}
	return ceilDiv(n, size)
}

// ragged reports whether sequences have lengths of their own.
func (pl *plan) ragged() bool { return pl.call != nil && !equalLengths(pl.call) }

// sideOf returns the rows, or keys, of sequence b, how many the tensors have place for, and
// the length of the other side.
func sideOf(c *flashkit.Call, b int, rows bool) (n, place, met int) {
	s := c.Seq(b)
	n, place, met = s.M, c.KVLen, s.N
	packed := c.Traits.PackedKV
	if rows {
		n, place, met, packed = s.N, c.QLen, s.M, c.Traits.PackedQ
	}
	if packed {
		place = n
	}
	return n, place, met
}

// sideTiles returns how many tiles of size the rows, or the keys, of all sequences have,
// for one head of each.
func (pl *plan) sideTiles(size int, rows bool) int {
	if !pl.ragged() {
		if rows {
			return pl.p.Batch * ceilDiv(pl.p.QLen, size)
		}
		return pl.p.Batch * ceilDiv(pl.p.KVLen, size)
	}
	sum := 0
	for b := range pl.p.Batch {
		n, place, _ := sideOf(pl.call, b, rows)
		sum += tilesOf(n, place, size)
	}
	return sum
}

// rowTiles and keyTiles return the tiles of query rows, and of keys, of so many.
func (pl *plan) rowTiles(size int) int { return pl.sideTiles(size, true) }
func (pl *plan) keyTiles(size int) int { return pl.sideTiles(size, false) }

// cut makes t the table of tiles of size, with so many heads of each sequence. longest
// puts the spans of the longest items first.
func (t *spanTable) cut(pl *plan, size, heads int, rows, longest bool) {
	t.heads, t.spans = heads, t.spans[:0]
	if !pl.ragged() {
		n := pl.p.KVLen
		if rows {
			n = pl.p.QLen
		}
		t.all = headSpan{heads: pl.p.Batch * heads, tiles: ceilDiv(n, size)}
		return
	}
	if cap(t.spans) < pl.p.Batch {
		t.spans = make([]headSpan, 0, pl.p.Batch)
	}
	for b := range pl.p.Batch {
		n, place, met := sideOf(pl.call, b, rows)
		t.spans = append(t.spans, headSpan{b: b, heads: heads, tiles: tilesOf(n, place, size), met: met})
	}
	if longest {
		slices.SortFunc(t.spans, func(x, y headSpan) int {
			if x.met != y.met {
				return y.met - x.met
			}
			return x.b - y.b
		})
	}
	first := 0
	for i := range t.spans {
		t.spans[i].first = first
		first += t.spans[i].heads * t.spans[i].tiles
	}
}

// tables returns the bytes of so many tables.
func (pl *plan) tables(n int) float64 {
	if !pl.ragged() {
		return 0
	}
	return float64(n) * float64(pl.p.Batch) * float64(unsafe.Sizeof(headSpan{}))
}
