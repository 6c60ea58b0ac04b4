package wasm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Run it also with GOMAXPROCS=1 in the environment to see the scaling.
func BenchmarkKernels(b *testing.B) {
	x, err := New(b.Context())
	require.NoError(b, err)
	defer x.Close()
	for _, name := range []string{
		"b1-h8-g8-n1024-m1024-d64-f32", "b1-h8-g8-n1024-m1024-d64-f32-causal", "b1-h8-g8-n1024-m1024-d64-f16",
		"b1-h8-g8-n1024-m1024-d64-bf16", "b1-h8-g8-n1024-m1024-d128-f32", "b1-h1-g1-n1024-m1024-d64-f32",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(b, err)
		for _, k := range x.Kernels() {
			p := within(&k, p)
			c := newCall(p)
			b.Run(k.Name+"/"+p.String(), func(b *testing.B) {
				require.NoError(b, c.run(b.Context(), k))
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, c.run(b.Context(), k))
				}
				b.ReportMetric(p.FLOPs(k.Pass)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
