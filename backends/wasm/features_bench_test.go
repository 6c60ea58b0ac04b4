package wasm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The cost of a feature relative to a plain call of the same kernel. Each round runs a plain call
// and a call with the feature. The result is the median of the ratios of their times. A key mask
// hides the same keys from every row; a mask and a bias differ from row to row.
func BenchmarkFeatureCosts(b *testing.B) {
	x, err := New(b.Context())
	require.NoError(b, err)
	defer x.Close()
	for _, d := range []int{64, 128} {
		plain := problem(b, fmt.Sprintf("b1-h4-g4-n512-m512-d%d-f32", d))
		for _, k := range x.Kernels()[:2] {
			base := newCall(plain)
			require.NoError(b, base.run(b.Context(), x.Kernels()[0]))
			for _, name := range []string{"plain", "alibi", "sink", "keymask", "softcap30", "dropout0.125", "bias", "mask"} {
				b.Run(fmt.Sprintf("%s/%s/%s", k.Name, plain, name), func(b *testing.B) {
					c := newCall(featureProblem(b, plain, name))
					if name == "keymask" {
						c.fwd.Mask = flashkit.Bools(c.fwd.Mask.Bools()[:plain.KVLen], 1, 1, 1, plain.KVLen)
						c.bwd.Mask = c.fwd.Mask
					}
					require.NoError(b, c.run(b.Context(), x.Kernels()[0]))
					var ratios []float64
					for b.Loop() {
						start := time.Now()
						require.NoError(b, base.run(b.Context(), k))
						middle := time.Now()
						require.NoError(b, c.run(b.Context(), k))
						ratios = append(ratios, float64(time.Since(middle))/float64(middle.Sub(start)))
					}
					slices.Sort(ratios)
					b.ReportMetric(ratios[len(ratios)/2], "times-plain")
				})
			}
		}
	}
}

func featureProblem(b *testing.B, p flashkit.Problem, name string) flashkit.Problem {
	switch name {
	case "plain":
		return p
	case "keymask":
		name = "mask"
	}
	return problem(b, p.String()+"-"+name)
}
