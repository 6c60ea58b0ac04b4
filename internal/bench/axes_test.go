package bench

import (
	"fmt"
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

func TestNumbers(t *testing.T) {
	const huge = math.MaxInt>>(bits.UintSize/2-1) + 1 // its square is no int
	for s, want := range map[string][]int{
		"128":         {128},
		"64,128":      {64, 128},
		"128:1024:x2": {128, 256, 512, 1024},
		"128:1000:x2": {128, 256, 512},
		"1:100:x10":   {1, 10, 100},
		"64:256:+64":  {64, 128, 192, 256},
		"64:200:+64":  {64, 128, 192},
		"5:5:x2":      {5},
		"5,1:5:+2,4":  {5, 1, 3, 4},
		fmt.Sprintf("1:%d:x%d", math.MaxInt, huge): {1, huge},
	} {
		got, err := ParseNumbers(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for s, want := range map[string]string{
		"": `""`, "0": `"0"`, "-1": `"-1"`, "1.5": `"1.5"`, "64,": `""`, "a:8:x2": `"a"`, "8:b:x2": `"b"`, "8:16:x": `""`,
		"8:16": "from:to", "8:16:": "from:to", "8:16:2": "from:to", "+8": `"+8"`, "8:16:x1": "from:to", "8:16:x2:x2": "from:to", "8:16:+0": `"0"`,
		"16:8:x2": "ends at 8", "1:99999999:+1": "10000",
	} {
		_, err := ParseNumbers(s)
		require.ErrorContains(t, err, want, s)
	}
}

// The same seed draws the same problems, of all kinds and of bounded size.
func TestRandomProblems(t *testing.T) {
	list := RandomProblems(7, 300)
	require.Equal(t, list, RandomProblems(7, 300))
	require.NotEqual(t, list, RandomProblems(8, 300))
	var row, masked, shared, batches int
	for _, p := range list {
		require.NoError(t, p.Validate())
		require.LessOrEqual(t, p.FLOPs(flashkit.PassForward), randomFLOPs)
		for n, is := range map[*int]bool{&row: p.QLen == 1, &masked: p.Band != flashkit.Band{}, &shared: p.KVHeads < p.Heads, &batches: p.Batch > 1} {
			if is {
				*n++
			}
		}
	}
	require.Greater(t, min(row, masked, shared, batches), 20)
}

// The grids are valid, large enough and disjoint: regret must not measure calibrated problems.
func TestGrids(t *testing.T) {
	types, passes, n := map[flashkit.DType]bool{}, map[flashkit.Pass]bool{}, 0
	asked := map[flashkit.Problem]bool{}
	for _, h := range RegretGrid() {
		require.NoError(t, h.problem.Validate())
		require.False(t, asked[h.problem], "%s twice", h.problem)
		asked[h.problem], types[h.problem.DType] = true, true
		for _, s := range h.passes {
			passes[s] = true
			n++
		}
	}
	require.GreaterOrEqual(t, n, 80)
	require.Len(t, types, 3)
	require.Len(t, passes, 2)
	for _, h := range CalibrateGrid() {
		require.NoError(t, h.problem.Validate())
		require.False(t, asked[h.problem], "%s in both", h.problem)
	}
}
