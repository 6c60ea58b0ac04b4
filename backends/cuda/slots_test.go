package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Packed sequences have slots for all their tiles, and one more each at most.
func TestSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		x, size, most, tiles := new(arguments), 1<<r.IntN(8), 0, 0
		batch, starts := 1+r.IntN(40), []int32{int32(r.IntN(3))}
		for range batch {
			n := r.IntN(1 << r.IntN(12))
			most, tiles = max(most, n), tiles+ceilDiv(n, size)
			starts = append(starts, starts[len(starts)-1]+int32(n))
		}
		x.setSequences(&flashkit.Sequences{QStarts: []int32{0, 1}, KVStarts: starts})
		n := int(x.slots(seqKVStarts, most, size, true))
		require.GreaterOrEqual(t, n, tiles)
		require.LessOrEqual(t, n, tiles+batch)
		first := func(b int) int { return int(starts[b]-starts[0])/size + b } // as the kernels have it
		for b := range batch {
			require.GreaterOrEqual(t, first(b+1)-first(b), ceilDiv(int(starts[b+1]-starts[b]), size))
		}
		require.Equal(t, n, first(batch))
		if few := int(x.slots(seqKVStarts, most, size, false)); few > 0 {
			require.Equal(t, n, few)
			require.Less(t, 5*few, 4*batch*ceilDiv(most, size))
		}
		x.shapes[1][2], x.seqArrays = int(starts[batch]), [5][]int32{} // the device has the lists
		require.GreaterOrEqual(t, int(x.slots(seqKVStarts, most, size, true)), n)
	}
	x := new(arguments)
	require.Zero(t, x.slots(seqQStarts, 100, 64, true), "not packed")
	x.setSequences(&flashkit.Sequences{QStarts: []int32{0, 4096, 8192}})
	require.Zero(t, x.slots(seqQStarts, 4096, 64, false), "equal lengths")
}
