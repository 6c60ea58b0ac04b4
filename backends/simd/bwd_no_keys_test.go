package simd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// A sequence without keys has gradients of 0, even if the sums of its rows are made in runs.
func TestBackwardWithoutKeys(t *testing.T) {
	b := simd.New()
	defer b.Close()
	p, err := flashkit.ParseProblem("b2-h64-g1-n200-m8-d4-f32-bias-mask-ragged")
	require.NoError(t, err)
	args := flashkit.NewArgs(p, flashkit.PassBackward)
	args.Seqs = &flashkit.Sequences{QLens: []int32{200, 200}, KVLens: []int32{0, 8}}
	for _, k := range b.Kernels() {
		if k.Pass != flashkit.PassBackward || k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		for i := range args.DQ.Float32s() {
			args.DQ.Float32s()[i] = 1
		}
		require.NoError(t, k.Compute(t.Context(), p, args), k.Name)
		for i, x := range args.DQ.Float32s()[:args.DQ.Len()/2] {
			require.Zero(t, x, "%s: element %d of dQ", k.Name, i)
		}
	}
}
