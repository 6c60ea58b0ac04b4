package simd_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// In a row that sees one key, P is 1 and O is V. So dP equals delta, and Q and K get no gradient.
// Kernels sum dP and delta in the same order.
func TestOneKeyHasNoGradient(t *testing.T) {
	slow.UnderRace(t)
	r := rand.New(rand.NewPCG(3, rand.Uint64()))
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			for range 60 {
				group, dim := 1+r.IntN(3), 1+r.IntN(140)
				p := flashkit.Problem{
					Batch: 1 + r.IntN(3), Heads: group * 2, KVHeads: 2, QLen: 1 + r.IntN(40), KVLen: 1, Dim: dim, VDim: dim,
					DType: []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}[r.IntN(3)],
				}
				if k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				a := newOperands(p, heap, bhsd)
				a.bwd.DLSE = flashkit.Tensor{}
				for _, x := range []flashkit.Tensor{a.fwd.Q, a.fwd.K, a.fwd.V, a.bwd.DO} {
					change(x, func([4]int, float32) float32 { return float32(r.NormFloat64()) })
				}
				a.run(t, k)
				for name, x := range map[string]flashkit.Tensor{"dq": a.bwd.DQ, "dk": a.bwd.DK} {
					for _, y := range values(x) {
						require.Zero(t, y, "%s of %s", name, p)
					}
				}
			}
		})
	}
}
