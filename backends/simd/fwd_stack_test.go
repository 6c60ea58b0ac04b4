package simd_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Heads whose rows are neighbors in memory may be computed as one head. Results have the same bits if the
// rows of different heads alternate in memory.
func TestBitsOfStackedHeads(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassForward || strings.Contains(k.Name, "decode") {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			for range 40 {
				g := 1 + r.IntN(3)
				p := flashkit.Problem{Batch: 1 + r.IntN(3), Heads: g * (2 + r.IntN(5)), KVHeads: g, QLen: 1 + r.IntN(60), KVLen: 1 + r.IntN(300), Dim: 1 + r.IntN(80), VDim: 1 + r.IntN(80)}
				if r.IntN(2) == 0 { // whole tiles over several blocks of keys
					p.QLen, p.KVLen = 16*(1+r.IntN(4)), 200+r.IntN(400)
				}
				if p.DType = dtypes[r.IntN(3)]; k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				s := newSample(r, p)
				var want [2][]float64
				for i, view := range []func(flashkit.Tensor) flashkit.Tensor{
					func(x flashkit.Tensor) flashkit.Tensor { return x }, flashkit.Tensor.AsBSHD,
				} {
					a := s.args
					q, o := view(flashkit.Zeros(p.DType, p.Batch, p.Heads, p.QLen, p.Dim)), view(flashkit.Zeros(p.DType, p.Batch, p.Heads, p.QLen, p.VDim))
					lse := view(flashkit.Zeros(flashkit.Float32, p.Batch, p.Heads, p.QLen, 1))
					each(q, func(pos [4]int, at int) { put(&q, at, get(&a.Q, a.Q.Offset(pos[0], pos[1], pos[2])+pos[3])) })
					a.Q, a.O, a.LSE = q, o, lse
					require.NoError(t, k.Compute(t.Context(), p, &a), s.about)
					for _, x := range []*flashkit.Tensor{&o, &lse} {
						each(*x, func(_ [4]int, at int) { want[i] = append(want[i], get(x, at)) })
					}
				}
				require.Equal(t, want[0], want[1], "seed %d: %s", seed, s.about)
			}
		})
	}
}
