package simd_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Gradients that are too large for planes of bf16 are added separately. The order of these
// additions does not depend on the number of keys of a block, which depends on the other sequences.
func TestBackwardBitsOfLargeGradients(t *testing.T) {
	slow.UnderRace(t)
	p, err := flashkit.ParseProblem("b4-h1-g1-n34-m3879-d5-dv1-f32-causal-alibi-bias-mask")
	require.NoError(t, err)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward || k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			s := &batchTrial{p: p, n: []int{3, 20, 20, 9}, m: []int{2380, 278, 3429, 3850}, seed: 4336444667094091846,
				size: map[string]float32{"K": 0x1p-124, "Q": 0x1p-124}, bias: flashkit.Float32, block: [2]int{32, 8}}
			s.check(t, rand.New(rand.NewPCG(1, 2)), k)
		})
	}
}
