package wasm

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Many short sequences, as a model of sentences has them.
func BenchmarkShort(b *testing.B) {
	x, err := New(b.Context())
	require.NoError(b, err)
	defer x.Close()
	for _, d := range []int{32, 64} {
		for _, s := range []int{16, 32, 64, 128} {
			p := problem(b, fmt.Sprintf("b32-h12-g12-n%d-m%d-d%d-f32", s, s, d))
			c := newCall(p)
			require.NoError(b, c.run(b.Context(), x.Kernels()[0]))
			for _, k := range x.Kernels()[:2] {
				b.Run(fmt.Sprintf("%s/%s", k.Name, p), func(b *testing.B) {
					for b.Loop() {
						require.NoError(b, c.run(b.Context(), k))
					}
				})
			}
		}
	}
}
