//go:build !purego

package simd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The items of folded heads have each row of each head once, padding included. Folded rows see the same
// keys as the rows of the tensors.
func TestFoldHeads(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 300 {
		kvHeads, group, room := 1+r.IntN(3), 1+r.IntN(9), 1+r.IntN(50)
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
			pl.rows = 1 + r.IntN(100)
			pl.turns = 1 + r.IntN(3)
			pl.cutRows()
		})
		require.Equal(t, group, pl.fold)
		type place struct{ b, h, row int }
		met := map[place]bool{}
		for item := range pl.headGroups() * pl.rowTiles(pl.rows) {
			var x seqTile
			x.findRows(pl, item)
			for i := x.from; i < x.end; i++ {
				h, row := x.place(i)
				at := place{x.b, h, row - x.Q0}
				if met[at] || h/group != x.g || (i >= x.to) != (at.row >= x.N) {
					t.Fatalf("item %d, row %d of %+v is row %d of head %d", item, i, x, row, h)
				}
				met[at] = true
				if i >= x.to {
					continue
				}
				lo, hi := x.Keys(i)
				if from, to := x.Seq.Keys(at.row); lo != from || hi != to {
					t.Fatalf("row %d of %+v sees keys [%d, %d)", i, x, lo, hi)
				}
				for k := range x.M {
					if first, last := x.Queries(k); (lo <= k && k < hi) != (first <= i && i < last) {
						t.Fatalf("key %d of %+v is seen by rows [%d, %d)", k, x, first, last)
					}
				}
			}
		}
		require.Len(t, met, p.Batch*p.Heads*room)
		pl.forget()
	}
}
