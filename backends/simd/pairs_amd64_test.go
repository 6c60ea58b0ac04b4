//go:build !purego

package simd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The parts of a tile must cover the tile's keys. A whole part must consist of whole steps of keys
// that all rows see.
func TestWholePart(t *testing.T) {
	for _, name := range []string{
		"b1-h1-g1-n70-m70-d8-bf16", "b1-h1-g1-n70-m71-d8-bf16-causal", "b1-h1-g1-n71-m300-d8-bf16-causal",
		"b1-h1-g1-n300-m71-d8-bf16-causal", "b1-h1-g1-n300-m300-d8-bf16-window95.0", "b1-h1-g1-n300-m301-d8-bf16-window7.90",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		seq := p.Ask(flashkit.PassForward).Seq(0)
		for _, step := range []int{2, tileStep} {
			wholes := 0
			for row := 0; row < p.QLen; row += pairLanes {
				n := min(pairLanes, p.QLen-row)
				first, seenTo := p.Keys(row)
				seenFrom, last := p.Keys(row + n - 1)
				for from, to := first&^(step-1), last; from < to; {
					until, whole := (&seqTile{Seq: seq, fold: 1}).wholePart(row, n, from, to, step)
					require.True(t, from < until && until <= to, "%s: part [%d, %d) of the keys to %d", name, from, until, to)
					if whole {
						wholes++
						require.True(t, seenFrom <= from && until <= seenTo, "%s: rows from %d on do not all see [%d, %d)", name, row, from, until)
						require.True(t, from%step == 0 && (until%step == 0 || until == p.KVLen), "%s: [%d, %d) is not whole steps of %d", name, from, until, step)
					}
					from = until
				}
			}
			require.NotZero(t, wholes, "%s, step %d", name, step)
		}
	}
}
