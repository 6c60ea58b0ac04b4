package conformance

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The spread vector of a grid case equals the oracle's result for the case's inputs.
func TestGridIsWhatItsPatternsSay(t *testing.T) {
	for _, c := range Grid() {
		if testing.Short() && c.Problem.QLen > 11 {
			continue
		}
		want := truth(c.Inputs()).arrays()
		got, _, err := c.expect()
		require.NoError(t, err)
		for i, x := range got.arrays() {
			require.Len(t, x, len(want[i]))
			for j := range x {
				if math.Abs(x[j]-want[i][j]) > 1e-6 {
					t.Fatalf("%s: %s[%d] is %g, want %g", c.Name, outputNames[i], j, x[j], want[i][j])
				}
			}
		}
	}
}

// All heads of a case differ, in inputs and outputs.
func TestHeadsOfTheGridDiffer(t *testing.T) {
	for _, c := range Grid() {
		in := c.Inputs()
		want, _, err := c.expect()
		require.NoError(t, err)
		heads := c.Problem.Batch * c.Problem.Heads
		for name, x := range map[string][]float64{"q": widen(in.q), "k": widen(in.k), "v": widen(in.v), "do": widen(in.do), "o": want.o, "dq": want.dq, "dk": want.dk, "dv": want.dv} {
			size := len(x) / heads
			for i := range heads {
				for j := range i {
					if slices.Equal(x[i*size:][:size], x[j*size:][:size]) {
						t.Fatalf("%s: heads %d and %d of %s are alike", c.Name, j, i, name)
					}
				}
			}
		}
	}
}
