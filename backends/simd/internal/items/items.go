// Package items numbers the items of a call. An item is usually a tile of query rows or of keys, in
// one head of one sequence. Sequences may have equal lengths, or be padded, packed or in pages.
package items

import (
	"math"
	"slices"
	"sort"
)

// A Table finds the sequence, the head and the tile of an item. If all sequences have equal
// lengths, they share one span. Otherwise each sequence has its own span.
type Table struct {
	Order
	Size  int // query rows, or keys, of a tile
	Spans []Span
}

// An Order is the order of the items of a Table.
type Order struct {
	Heads        int  // of a sequence
	Turns        int  // neighboring heads whose tiles alternate; 0: all heads of a span
	LongestFirst bool // spans with the longest items come first; otherwise spans are in the order of sequences
	LastFirst    bool // the last tile of each head comes first
}

// A Span is the items of one sequence, or of all sequences if their lengths are equal.
type Span struct {
	B      int // the sequence, or 0 for all
	Heads  int // heads of all sequences of the span
	Tiles  int // tiles of a head
	Turns  int // neighboring heads whose tiles alternate
	Length int // length of an item, for LongestFirst: the keys that a tile of query rows visits, or the reverse
	Counts     // its own counts; after Arrange, the sum of the counts of all spans before it
}

// Counts has the numbers of items, of items that merge chunks, and of floats of the chunks' results.
// Only kernels that split the keys of a head have merges and results.
type Counts struct{ Items, Merges, Results int }

// Add adds x to c. Results grows to at most math.MaxInt/2, so that no sum overflows. Neither c nor
// x has more than math.MaxInt/2 results.
func (c *Counts) Add(x Counts) {
	c.Items += x.Items
	c.Merges += x.Merges
	c.Results = min(c.Results+x.Results, math.MaxInt/2)
}

// Place returns the index in t.Spans of the span of an item.
func (t *Table) Place(item int) int {
	if len(t.Spans) == 1 {
		return 0
	}
	return sort.Search(len(t.Spans), func(i int) bool { return t.Spans[i].Items > item }) - 1
}

// Span returns the span of an item.
func (t *Table) Span(item int) *Span { return &t.Spans[t.Place(item)] }

// MergeSpan returns the span of an item that merges chunks.
func (t *Table) MergeSpan(item int) *Span {
	return &t.Spans[sort.Search(len(t.Spans), func(i int) bool { return t.Spans[i].Merges > item })-1]
}

// Find returns the sequence, the head in this sequence, and the tile of an item.
func (t *Table) Find(item int) (b, head, tile int) {
	s := t.Span(item)
	item -= s.Items
	first := item / (s.Turns * s.Tiles) * s.Turns
	item -= first * s.Tiles
	turns := min(s.Turns, s.Heads-first)
	head, tile = first+item%turns, item/turns
	if t.LastFirst {
		tile = s.Tiles - 1 - tile
	}
	return s.B + head/t.Heads, head % t.Heads, tile
}

// Index is the reverse of Find: it returns the item of a tile. The table's Turns must be 1, and spans
// and tiles must be in order.
func (t *Table) Index(b, head, tile int) int {
	if len(t.Spans) == 1 {
		return (b*t.Heads+head)*t.Spans[0].Tiles + tile
	}
	return t.Spans[b].Items + head*t.Spans[b].Tiles + tile
}

// Reset empties t, with room for n spans.
func (t *Table) Reset(o Order, size, n int) {
	if t.Order, t.Size, t.Spans = o, size, t.Spans[:0]; cap(t.Spans) < n {
		t.Spans = make([]Span, 0, n)
	}
}

// Arrange puts the spans in order. It replaces the counts of each span by the sum of the counts of
// all spans before it. So the field Items of a span becomes the number of the span's first item.
func (t *Table) Arrange() {
	if t.LongestFirst {
		slices.SortFunc(t.Spans, func(x, y Span) int {
			if x.Length != y.Length {
				return y.Length - x.Length
			}
			return x.B - y.B
		})
	}
	var before Counts
	for i := range t.Spans {
		own := t.Spans[i].Counts
		t.Spans[i].Counts = before
		before.Add(own)
	}
}
