//go:build !purego

package simd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// The items of folded heads have each row of each head once, padding included. Folded rows see the same
// keys as the rows of the tensors.
func TestFoldHeads(t *testing.T) {
	slow.UnderRace(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 100 {
		kvHeads, group, room := 1+r.IntN(3), 1+r.IntN(9), 1+r.IntN(100)
		p := flashkit.Problem{Batch: 1 + r.IntN(4), Heads: kvHeads * group, KVHeads: kvHeads, QLen: room, KVLen: 1 + r.IntN(90), Dim: 8, VDim: 8}
		if r.IntN(3) > 0 {
			p.Band = flashkit.Window(r.IntN(60), r.IntN(60))
		}
		c := p.Ask(flashkit.PassForward)
		lens := make([]int32, p.Batch)
		if r.IntN(2) == 0 {
			for b := range lens {
				lens[b] = int32(r.IntN(room + 1))
			}
			c.Args = &flashkit.Args{Seqs: &flashkit.Sequences{QLens: lens}}
		}
		pl := planned(c, func(pl *plan) {
			pl.foldHeads()
			pl.rows = foldRows * (1 + r.IntN(4))
			pl.turns = 1 + r.IntN(3)
			pl.cutRows()
		})
		require.Equal(t, group, pl.fold)
		type place struct{ b, h, row int }
		met := map[place]bool{}
		for item := range pl.headGroups() * pl.rowTiles(pl.rows) {
			var x seqTile
			x.findRows(pl, item)
			first, last := x.keysSeen()
			mark := func(h, row int) {
				at := place{x.b, h, row - x.Q0}
				if met[at] || h/group != x.g {
					t.Fatalf("item %d of %+v has row %d of head %d", item, x, row, h)
				}
				met[at] = true
			}
			for i := x.from; i < x.to; i += foldRows {
				seq, from := x.tile(i)
				for lane := range min(foldRows, x.to-i) {
					h, row := seq.place(from + lane)
					mark(h, row)
					lo, hi := x.Keys(i + lane)
					from, to := x.Seq.Keys(row - x.Q0)
					if lo != from || hi != to || lo < hi && (lo < first || hi > last) {
						t.Fatalf("row %d of %+v sees keys [%d, %d), its item [%d, %d)", i+lane, x, lo, hi, first, last)
					}
				}
				for k := range x.M {
					lo, hi := seq.Queries(k)
					for lane := range min(foldRows, x.to-i) {
						first, last := x.Keys(i + lane)
						if r := from + lane; (first <= k && k < last) != (lo <= r && r < hi) {
							t.Fatalf("key %d of %+v is seen by rows [%d, %d)", k, seq, lo, hi)
						}
					}
				}
			}
			for h := x.h; h < x.h+x.fold; h++ {
				for row := x.to / x.fold; row < x.end/x.fold; row++ {
					mark(h, x.Q0+row)
				}
			}
		}
		require.Len(t, met, p.Batch*p.Heads*room)
		pl.forget()
	}
}
