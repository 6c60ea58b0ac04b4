//go:build !noasm && !purego

package simd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The parts of a tile must cover its keys, and a whole part must be whole pairs
// of keys that all rows see.
func TestWholePart(t *testing.T) {
	for _, name := range []string{
		"b1-h1-g1-n70-m70-d8-bf16", "b1-h1-g1-n70-m71-d8-bf16-causal", "b1-h1-g1-n71-m300-d8-bf16-causal",
		"b1-h1-g1-n300-m71-d8-bf16-causal", "b1-h1-g1-n300-m300-d8-bf16-window41.0", "b1-h1-g1-n300-m301-d8-bf16-window7.90",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		wholes := 0
		for row := 0; row < p.QLen; row += pairLanes {
			n := min(pairLanes, p.QLen-row)
			from, _ := p.Keys(row)
			_, to := p.Keys(row + n - 1)
			for from < to {
				until, whole := wholePart(&p, row, n, from, to)
				require.True(t, from < until && until <= to, "%s: part [%d, %d) of the keys to %d", name, from, until, to)
				if whole {
					wholes++
					_, seenTo := p.Keys(row)
					seenFrom, _ := p.Keys(row + n - 1)
					require.True(t, seenFrom <= from && until <= seenTo, "%s: rows from %d on do not all see [%d, %d)", name, row, from, until)
					require.True(t, from%2 == 0 && (until%2 == 0 || until == p.KVLen), "%s: [%d, %d) is not whole pairs", name, from, until)
				}
				from = until
			}
		}
		require.NotZero(t, wholes, name)
	}
}
