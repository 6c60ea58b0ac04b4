package simd_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// If LSE is far too small, for instance because of another definition, weights exceed float32.
// Results with such weights are NaN or infinite, never plausible numbers.
func TestLSEFarTooSmall(t *testing.T) {
	slow.UnderRace(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 6 {
		n, vdim := 1+r.IntN(200), 1+r.IntN(70)
		name := fmt.Sprintf("b1-h%d-g2-n%d-m%d-d%d-f32%s", 2+2*r.IntN(3), n, n, 1+r.IntN(70), []string{"", "-causal"}[r.IntN(2)])
		for _, k := range simd.New().Kernels() {
			for _, dtype := range dtypes {
				p := problem(t, name, dtype)
				p.VDim = vdim
				if k.Pass != flashkit.PassBackward || k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				a := newOperands(p, heap, bhsd)
				a.run(t, k)
				for _, by := range []float32{1000, 1e5, 1e30} {
					change(a.fwd.LSE, func(_ [4]int, old float32) float32 { return old - by })
					require.NoError(t, k.Compute(t.Context(), p, &a.bwd))
					for output, x := range a.outputs(k) {
						for i, y := range x {
							if kind(float64(y)) == "finite" {
								t.Fatalf("%s %s, LSE less by %g: %s[%d] is %g", k.Name, p, by, output, i, y)
							}
						}
					}
				}
			}
		}
	}
}
