package conformance

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

func TestDescribes(t *testing.T) {
	honest := flashkit.Kernel{Name: "x/fwd_y", About: "Go: a loop", DTypes: dtypes[:1], MaxDim: 8, MaxRows: 4, Refuses: func(p *flashkit.Call) string {
		if p.DType != flashkit.Float32 || max(p.Dim, p.VDim) > 8 || p.Heads/p.KVHeads*p.QLen > 4 {
			return "no"
		}
		return ""
	}, Run: func(context.Context, *flashkit.Call) error { return nil }}
	require.NoError(t, describes(honest))
	for want, lie := range map[string]func(k *flashkit.Kernel){
		`About = "", `:                    func(k *flashkit.Kernel) { k.About = "" },
		`About = "two\nlines", `:          func(k *flashkit.Kernel) { k.About = "two\nlines" },
		`Requires = "a | b"`:              func(k *flashkit.Kernel) { k.Requires = "a | b" },
		`DTypes = []: want`:               func(k *flashkit.Kernel) { k.DTypes = nil },
		`DTypes = [f32 f16], but Fits(b1`: func(k *flashkit.Kernel) { k.DTypes = dtypes[:2] },
		`MaxDim = 9, but`:                 func(k *flashkit.Kernel) { k.MaxDim = 9 },
		`MaxDim = 7, but`:                 func(k *flashkit.Kernel) { k.MaxDim = 7 },
		`MaxRows = 5, but`:                func(k *flashkit.Kernel) { k.MaxRows = 5 },
		`MaxRows = -1`:                    func(k *flashkit.Kernel) { k.MaxRows = -1 },
	} {
		k := honest
		lie(&k)
		require.ErrorContains(t, describes(k), want)
	}
	absent := honest
	absent.Missing, absent.MaxDim = func() string { return "no such machine" }, 100
	require.NoError(t, describes(absent), "nothing fits there")
}
