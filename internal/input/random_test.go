package input

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

func TestAlibiSlopes(t *testing.T) {
	require.Equal(t, []float32{.25, .0625, .015625, .00390625}, AlibiSlopes(4).Float32s())
	twelve := AlibiSlopes(12).Float32s()
	require.Equal(t, AlibiSlopes(8).Float32s(), twelve[:8])
	sixteen := AlibiSlopes(16).Float32s()
	for i := range 4 {
		require.Equal(t, sixteen[2*i], twelve[8+i])
	}
}

// The lengths of random input are within the problem's, and its table has each page once.
func TestRandomSequences(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 200 {
		p := flashkit.Problem{Batch: r.IntN(5), Heads: 1, KVHeads: 1, QLen: r.IntN(9), KVLen: r.IntN(40), Dim: 1, VDim: 1, Ragged: true, Page: r.IntN(9)}
		in := Random(p, r.Uint64(), BHSD, false)
		args := in.WithOutputs(false)
		require.NoError(t, p.Check(flashkit.PassForward, &args), p)
		seen := map[int32]bool{}
		for _, page := range in.Args.Seqs.Pages {
			require.False(t, seen[page])
			seen[page] = true
		}
	}
}
