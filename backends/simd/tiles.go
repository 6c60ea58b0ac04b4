package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
)

// cutTiles fills t with the tiles of all sequences. These are tiles of query rows if rows is true,
// else tiles of keys.
func (pl *plan) cutTiles(t *items.Table, rows bool, size int, o items.Order) {
	t.Reset(o, size, pl.sequences())
	for b := range pl.sequences() {
		n, room, other := pl.side(b, rows)
		s := items.Span{B: b, Heads: o.Heads * pl.alike(), Tiles: tilesOf(n, room, size), Length: other}
		s.Items = s.Heads * s.Tiles
		if s.Turns = o.Turns; o.Turns == 0 {
			s.Turns = s.Heads
		}
		t.Spans = append(t.Spans, s)
	}
	t.Arrange()
}

func (pl *plan) tableBytes() float64 {
	return float64(pl.tables) * float64(pl.sequences()) * float64(unsafe.Sizeof(items.Span{}))
}

// sequences returns the number of sequences that have their own span in a table. It is 1 if all
// lengths are equal, since one span then serves all sequences.
func (pl *plan) sequences() int {
	if pl.ragged {
		return pl.p.Batch
	}
	return min(1, pl.p.Batch)
}

// alike returns the number of sequences that share a span.
func (pl *plan) alike() int {
	if pl.ragged {
		return 1
	}
	return pl.p.Batch
}

// side returns lengths of sequence b. If rows is true, n is the number of query rows of all folded
// heads, and other is the number of keys. If rows is false, n is the number of keys, and other the number of query
// rows. room is the number of rows of the tensors for n, padding included.
func (pl *plan) side(b int, rows bool) (n, room, other int) {
	q, kv := pl.p.QLen, pl.p.KVLen
	if pl.ragged {
		s := pl.call.Seq(b)
		q, kv = s.N, s.M
	}
	if rows {
		return q * pl.fold, pl.rowRoom(q) * pl.fold, kv
	}
	return kv, pl.keyRoom(kv), q
}

// rowRoom returns the number of rows, padding included, that the tensors have for a sequence of n
// query rows.
func (pl *plan) rowRoom(n int) int {
	if pl.call.Traits.PackedQ && !pl.portable.ownBias {
		return n
	}
	return pl.p.QLen
}

// keyRoom returns the number of rows, padding included, that the tensors have for a sequence of n
// keys.
func (pl *plan) keyRoom(n int) int {
	if pl.call.Traits.PackedKV {
		return n
	}
	return pl.p.KVLen
}

// tilesOf returns the number of tiles of n rows. A sequence without rows has one tile if the
// tensors have room for rows, because this tile clears the padding.
func tilesOf(n, room, size int) int {
	if n == 0 && room > 0 {
		return 1
	}
	return ceilDiv(n, size)
}

func (pl *plan) rowTiles(size int) int { return pl.sideTiles(size, true) }

func (pl *plan) keyTiles(size int) int { return pl.sideTiles(size, false) }

func (pl *plan) sideTiles(size int, rows bool) int {
	sum := 0
	for b := range pl.sequences() {
		n, room, _ := pl.side(b, rows)
		sum += tilesOf(n, room, size)
	}
	return sum * pl.alike()
}

// seqTile is the query rows, or keys, [from, to) of a head of sequence b. Rows [to, end) of the
// tensors are padding. If fold is more than 1, the rows are rows of fold heads, see fwd_fold.go.
type seqTile struct {
	flashkit.Seq
	b, h, g       int // sequence, query head, KV head
	from, to, end int
	fold          int
}

func (pl *plan) tileOf(b, h, g int) seqTile {
	return seqTile{Seq: pl.call.Seq(b), b: b, h: h, g: g, fold: 1}
}

// setRows sets t to a tile of at most n query rows that begins at row from. The tile with the last
// row also gets the padding.
func (t *seqTile) setRows(pl *plan, from, n int) {
	all := t.N * t.fold
	t.from, t.to = from, max(from, min(from+n, all))
	if t.end = t.to; t.to == all {
		t.end = pl.rowRoom(t.N) * t.fold
	}
}

// setKeys sets t to a tile of at most n keys that begins at key from. The tile with the last key
// also gets the padding.
func (t *seqTile) setKeys(pl *plan, from, n int) {
	t.from, t.to = from, max(from, min(from+n, t.M))
	if t.end = t.to; t.to == t.M {
		t.end = pl.keyRoom(t.M)
	}
}

// findRows sets t to the query rows of an item's first head. It returns the tile's number in that
// head.
func (t *seqTile) findRows(pl *plan, item int) (tile int) {
	b, head, tile := pl.byRow.Find(item)
	h := head * pl.headsPerItem * pl.fold
	t.b, t.h, t.g, t.fold, t.Seq = b, h, h/(pl.p.Heads/pl.p.KVHeads), pl.fold, pl.call.Seq(b)
	t.setRows(pl, tile*pl.byRow.Size, pl.byRow.Size)
	return tile
}

func (t *seqTile) findKeys(pl *plan, item int) {
	b, g, tile := pl.byKey.Find(item)
	t.b, t.h, t.g, t.fold, t.Seq = b, 0, g, 1, pl.call.Seq(b)
	t.setKeys(pl, tile*pl.byKey.Size, pl.byKey.Size)
}
