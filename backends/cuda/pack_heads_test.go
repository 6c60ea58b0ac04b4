package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The query heads of a group become rows of one head if that saves tiles and no mask distinguishes
// rows.
func TestFolded(t *testing.T) {
	for name, want := range map[string]string{
		"b9-h32-g4-n15-m17594-d80-bf16":        "b9-h4-g4-n120-m17594-d80-bf16",
		"b1-h128-g1-n1-m300-d256-bf16":         "b1-h1-g1-n128-m300-d256-bf16",
		"b1-h8-g4-n96-m300-d64-f32":            "b1-h4-g4-n192-m300-d64-f32",
		"b1-h32-g8-n1-m300-d64-bf16":           "", // for decode_sm80
		"b1-h8-g1-n15-m300-d64-bf16-causal":    "",
		"b1-h8-g1-n15-m300-d64-bf16-window5.5": "",
		"b1-h8-g1-n15-m300-d64-bf16-sink":      "",
		"b1-h8-g8-n15-m300-d64-bf16":           "",
		"b1-h8-g2-n128-m300-d64-bf16":          "",
		"b1-h8-g2-n0-m300-d64-bf16":            "",
	} {
		q, fewer := packedHeads(problem(t, name))
		require.Equal(t, want != "", fewer, name)
		if fewer {
			require.Equal(t, want, q.String())
		}
	}
}

// Rows that are not evenly spaced stay in place, and both ways give the same.
func TestFoldLaunches(t *testing.T) {
	b, f := openFake(t)
	for name, blocks := range map[string]int{"b2-h16-g2-n9-m30-d8-bf16": 4, "b2-h16-g2-n9-m30-d8-bf16-causal": 32} {
		c := newDeviceCall(t, b, name)
		c.fwdOptions.Kernel, f.launches = "cuda/fwd_sm80", nil
		require.NoError(t, c.forward())
		require.Len(t, f.launches, 1)
		require.Equal(t, blocks, f.launches[0].blocks, name)
		c.close(t)
	}
	var a params
	p := problem(t, "b2-h16-g2-n9-m30-d8-bf16")
	q, _ := packedHeads(p)
	a.setProblem(p)
	for _, i := range [...]int{0, 3, 4} {
		a.views[i] = view{1, 320, 8, 64} // heads side by side in a row
	}
	before := a
	require.False(t, a.packHeads(q))
	require.Equal(t, before, a)
	a.qLen, q.QLen = 1, 8
	require.True(t, a.packHeads(q))
	require.Equal(t, view{1, 320, 64, 8}, a.views[0])
	require.Equal(t, int32(2), a.heads)
}
