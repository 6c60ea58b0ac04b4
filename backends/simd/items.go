package simd

import (
	"slices"
	"sort"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A featurePlan says how the portable kernels cut a call that has features.
type featurePlan struct {
	n, m       int // rows and keys of the longest sequence that there is, whatever the problem allows
	rows, keys int // of the largest tile of these
	// A table of packed sequences finds their tiles.
	packedRows, packedKeys bool
	// Items. Those of biases and sinks are tiles of DBias and heads of DSink.
	queryItems, keyItems, biasItems, sinkItems int
	// A row of DBias belongs to one query row, whose item writes it.
	ownBias bool
}

// planFeatures plans a call. Without arguments its sequences are as long as they may be.
func planFeatures(c *flashkit.Call) (f featurePlan) {
	n, m := c.QLen, c.KVLen
	if c.Batch == 0 {
		n, m = 0, 0
	}
	rowTiles, keyTiles := c.Batch*ceilDiv(n, tileQ), c.Batch*ceilDiv(m, tileK)
	if c.Args != nil {
		if t := &c.Args.DBias; c.Pass == flashkit.PassBackward && !t.IsZero() {
			s := t.Shape()
			f.ownBias = s == [4]int{c.Batch, c.Heads, c.QLen, c.KVLen}
			if !f.ownBias {
				f.biasItems = s[0] * s[1] * ceilDiv(s[2], tileQ) * ceilDiv(s[3], tileK)
			}
		}
		if c.Pass == flashkit.PassBackward && !c.Args.DSink.IsZero() {
			f.sinkItems = c.Heads
		}
		if s := c.Args.Seqs; s != nil {
			if s.QStarts != nil {
				var packed int
				packed, n = packedTiles(s.QStarts, tileQ)
				if f.packedRows = !f.ownBias; f.packedRows {
					rowTiles = packed
				}
			}
			switch {
			case s.KVStarts != nil:
				keyTiles, m = packedTiles(s.KVStarts, tileK)
				f.packedKeys = c.Pass == flashkit.PassBackward
			case s.KVLens != nil:
				m = 0
				for _, n := range s.KVLens {
					m = max(m, int(n))
				}
			}
		}
	}
	f.n, f.m, f.rows, f.keys = n, m, min(tileQ, n), min(tileK, m)
	f.queryItems, f.keyItems = c.Heads*rowTiles, c.KVHeads*keyTiles
	return f
}

// packedTiles returns how many tiles of the given size packed sequences have, and how
// long the longest of them is.
func packedTiles(starts []int32, size int) (sum, longest int) {
	for b := range len(starts) - 1 {
		n := int(starts[b+1] - starts[b])
		sum, longest = sum+ceilDiv(n, size), max(longest, n)
	}
	return sum, longest
}

// An itemTable finds the tile of query rows, or of keys, of an item. Where every
// sequence has as many tiles that is a formula, and the items of the same tile follow
// each other; where sequences are packed it is a search.
type itemTable struct {
	heads, batch int
	packed       bool
	spans        []tileSpan // of packed sequences, those of the longest items first
}

// A tileSpan is the tiles of sequence b: from the end of the span before it up to end.
type tileSpan struct {
	b, end int
	met    int // rows or keys of the other side
}

// find returns the sequence, the head and the tile of an item.
func (t *itemTable) find(item int) (b, head, tile int) {
	head, tile = item%t.heads, item/t.heads
	if !t.packed {
		return tile % t.batch, head, tile / t.batch
	}
	i := sort.Search(len(t.spans), func(i int) bool { return t.spans[i].end > tile })
	if i > 0 {
		tile -= t.spans[i-1].end
	}
	return t.spans[i].b, head, tile
}

// setPacked makes t the table of tiles of packed rows, or of packed keys.
func (t *itemTable) setPacked(c *flashkit.Call, rows bool) {
	if t.packed = true; cap(t.spans) < c.Batch {
		t.spans = make([]tileSpan, 0, c.Batch)
	}
	t.spans = t.spans[:0]
	for b := range c.Batch {
		s := c.Seq(b)
		if rows {
			t.spans = append(t.spans, tileSpan{b, ceilDiv(s.N, tileQ), s.M})
		} else {
			t.spans = append(t.spans, tileSpan{b, ceilDiv(s.M, tileK), s.N})
		}
	}
	slices.SortFunc(t.spans, func(x, y tileSpan) int {
		if x.met != y.met {
			return y.met - x.met
		}
		return x.b - y.b
	})
	end := 0
	for i := range t.spans {
		end += t.spans[i].end
		t.spans[i].end = end
	}
}

// tables returns the bytes of the tables of packed sequences.
func (f *featurePlan) tables(c *flashkit.Call) (bytes float64) {
	for _, packed := range [2]bool{f.packedRows, f.packedKeys} {
		if packed {
			bytes += float64(c.Batch) * float64(unsafe.Sizeof(tileSpan{}))
		}
	}
	return bytes
}

// cut plans the call and makes the tables of its items.
func (j *job) cut() {
	c := j.call
	j.features = planFeatures(c)
	j.byRow.heads, j.byRow.batch, j.byRow.packed = c.Heads, c.Batch, false
	j.byKey.heads, j.byKey.batch, j.byKey.packed = c.KVHeads, c.Batch, false
	if j.features.packedRows {
		j.byRow.setPacked(c, true)
	}
	if j.features.packedKeys {
		j.byKey.setPacked(c, false)
	}
}

// A seqTile is rows, or keys, from up to but not including to of a head of sequence b.
// From there up to end are those of a padded tensor that the sequence does not have.
type seqTile struct {
	flashkit.Seq
	b, h, g       int // h is that of queries
	from, to, end int
}

// tileOf returns a tile of sequence b, query head h and KV head g without rows or keys.
func (j *job) tileOf(b, h, g int) seqTile { return seqTile{Seq: j.call.Seq(b), b: b, h: h, g: g} }

// setRows makes t the rows from a given one on, up to so many. The last ones bring those
// of a padded tensor that the sequence does not have.
func (t *seqTile) setRows(j *job, from, n int) {
	t.from = from
	t.to = max(from, min(from+n, t.N))
	if t.end = t.to; t.to == t.N && !j.call.Traits.PackedQ {
		t.end = j.p.QLen
	}
}

// setKeys does the same with keys.
func (t *seqTile) setKeys(j *job, from, n int) {
	t.from = from
	t.to = max(from, min(from+n, t.M))
	if t.end = t.to; t.to == t.M && !j.call.Traits.PackedKV {
		t.end = j.p.KVLen
	}
}

// rowTile returns the tile of query rows of an item. The last rows of a causal mask see
// the most keys, so they come first.
func (j *job) rowTile(item int) seqTile {
	b, h, tile := j.byRow.find(item)
	t := j.tileOf(b, h, h/(j.p.Heads/j.p.KVHeads))
	n := j.p.QLen
	if j.byRow.packed {
		n = t.N
	}
	t.from = (ceilDiv(n, tileQ) - 1 - tile) * tileQ
	t.end = min(t.from+tileQ, n)
	t.to = max(t.from, min(t.end, t.N))
	return t
}

// keyTile returns the tile of keys of an item. The first keys of a causal mask are seen
// by the most rows, so they come first.
func (j *job) keyTile(item int) seqTile {
	b, g, tile := j.byKey.find(item)
	t := j.tileOf(b, 0, g)
	t.from = tile * tileK
	n := j.p.KVLen
	if j.byKey.packed {
		n = t.M
	}
	t.end = min(t.from+tileK, n)
	t.to = max(t.from, min(t.end, t.M))
	return t
}
