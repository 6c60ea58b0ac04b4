package simd_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// BenchmarkFeatures measures a plain call, and a call with each single feature in the kernels that
// support this feature. FLASHKIT_BENCH names another problem.
func BenchmarkFeatures(b *testing.B) {
	name := os.Getenv("FLASHKIT_BENCH")
	if name == "" {
		name = "b1-h4-g2-n256-m256-d64-f32"
	}
	r := rand.New(rand.NewPCG(1, 2))
	for bit := flashkit.Feature(0); bit < flashkit.AllFeatures; bit = max(1, 2*bit) {
		p := problem(b, name, flashkit.Float32)
		addFeatures(&p, bit)
		for _, k := range simd.New().Kernels() {
			if k.Fits(p.Ask(k.Pass)) != "" {
				continue
			}
			args := flashkit.NewArgs(p, k.Pass)
			for _, a := range flashkit.Arguments() {
				if t := a.Of(args); !t.IsZero() && a.Role(&p, k.Pass)&flashkit.Input != 0 && t.DType() != flashkit.Bool {
					change(*t, func([4]int, float32) float32 { return r.Float32() })
				}
			}
			for i := range args.Mask.Bools() {
				args.Mask.Bools()[i] = true
			}
			b.Run(fmt.Sprintf("%s/%v", k.Name, bit), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, k.Compute(b.Context(), p, args))
				}
				pairs := float64(p.Batch) * float64(p.Heads) * float64(p.Area()) * float64(b.N)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/pairs, "ns/pair")
			})
		}
	}
}
