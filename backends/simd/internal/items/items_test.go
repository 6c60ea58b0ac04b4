package items

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// drawTable returns a table of sequences of equal or different lengths. It also returns the number
// of tiles of a head of each sequence.
func drawTable(r *rand.Rand, o Order, equal bool) (t Table, tiles []int) {
	batch, n := 1+r.IntN(5), 1+r.IntN(4)
	t.Reset(o, 64, batch)
	for b := range batch {
		if !equal {
			n = r.IntN(4)
		}
		tiles = append(tiles, n)
		s := Span{B: b, Heads: o.Heads, Tiles: n, Turns: o.Turns, Length: r.IntN(3)}
		if equal {
			s.Heads *= batch
		}
		if o.Turns == 0 {
			s.Turns = s.Heads
		}
		s.Items = s.Heads * n
		if b == 0 || !equal {
			t.Spans = append(t.Spans, s)
		}
	}
	t.Arrange()
	return t, tiles
}

// Every tile of every head of every sequence has one item, in the table's order.
func TestTable(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for i := range 1000 {
		o := Order{Heads: 1 + r.IntN(5), Turns: r.IntN(4), LongestFirst: i&1 != 0, LastFirst: i&2 != 0}
		table, tiles := drawTable(r, o, i&4 != 0)
		all := 0
		for _, n := range tiles {
			all += n * o.Heads
		}
		type place struct{ b, head, tile int }
		met, length := map[place]int{}, math.MaxInt
		for item := range all {
			b, head, tile := table.Find(item)
			at := place{b, head, tile}
			require.NotContains(t, met, at)
			require.Less(t, head, o.Heads)
			require.Less(t, tile, tiles[b])
			if before, ok := met[place{b, head, tile - 1}]; ok == o.LastFirst && tile > 0 {
				t.Fatalf("tile %d is item %d, the one before it %d", tile, item, before)
			}
			met[at] = item
			if s := table.Span(item); o.LongestFirst {
				require.LessOrEqual(t, s.Length, length)
				length = s.Length
			}
			if o.Turns == 1 && !o.LongestFirst && !o.LastFirst {
				require.Equal(t, item, table.Index(b, head, tile))
			}
		}
		require.Len(t, met, all)
	}
}

// Add limits results to math.MaxInt/2 instead of overflowing.
func TestCounts(t *testing.T) {
	c := Counts{1, 2, math.MaxInt / 2}
	c.Add(Counts{3, 4, math.MaxInt / 2})
	require.Equal(t, Counts{4, 6, math.MaxInt / 2}, c)
}

// MergeSpan finds the span of an item that merges chunks. These items have separate numbers.
func TestMergeSpan(t *testing.T) {
	var table Table
	table.Reset(Order{Heads: 1}, 0, 3)
	for b, n := range []int{2, 0, 3} {
		table.Spans = append(table.Spans, Span{B: b, Counts: Counts{Items: 1, Merges: n}})
	}
	table.Arrange()
	for item, b := range []int{0, 0, 2, 2, 2} {
		require.Equal(t, b, table.MergeSpan(item).B)
	}
}
