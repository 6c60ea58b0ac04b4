// Package items finds the work of an item: a tile of a head of a sequence, whether sequences are equal, padded,
// packed or in pages.
package items

import (
	"math"
	"slices"
	"sort"
)

// A Table finds the sequence, the head and the tile of an item. Sequences of equal
// lengths share a span; others have one each.
type Table struct {
	Order
	Size  int // query rows, or keys, of a tile
	Spans []Span
}

// An Order is the order of the items of a Table.
type Order struct {
	Heads        int  // of a sequence
	Turns        int  // neighboring heads that take turns, tile by tile; 0: all heads of a span
	LongestFirst bool // spans with the longest items come first, else they are in the order of the sequences
	LastFirst    bool // the last tile of a head comes first
}

// A Span is the items of one sequence, or of all sequences if they are equal.
type Span struct {
	B      int // the sequence, or the first of all
	Heads  int // of all sequences of the span
	Tiles  int // of a head
	Turns  int // heads that take turns
	Length int // of its items, in rows or keys of the other side
	Counts     // of the spans before it
}

// Counts are the items of spans. Split KV has items that merge chunks, too, and floats of the chunks' results.
type Counts struct{ Items, Merges, Results int }

// Add adds the items of spans. Neither has more than math.MaxInt/2 results.
func (c *Counts) Add(x Counts) {
	c.Items += x.Items
	c.Merges += x.Merges
	c.Results = min(c.Results+x.Results, math.MaxInt/2)
}

// Place returns the number of the span of an item.
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

// Find returns the sequence, the head and the tile of an item.
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

// Index returns the item of a tile in a table of sequences in order, whose heads take no turns.
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

// Arrange puts the spans in order and numbers their items.
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
