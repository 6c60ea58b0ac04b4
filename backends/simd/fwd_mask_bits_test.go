package simd_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// A mask with one row for all query rows gives the same bits as a mask that repeats this row.
// Kernels read the one row only once. Values that no row sees may be NaN.
func TestMaskOfKeysGivesTheBitsOfPairs(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassForward || k.MaxRows > 0 {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r, ran := rand.New(rand.NewPCG(seed, 0)), 0
			for i := range trials(t, 6, 12, 200) {
				p := drawForward(t, r, dtypes[i%3])
				p.Score.Mask, p.Ragged, p.Page, p.Carry = true, false, 0, false
				if p.KVLen = 1 + r.IntN(700); k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				ran++
				compareMasks(t, r, k, p)
			}
			t.Logf("%d trials", ran)
		})
	}
}

func compareMasks(t *testing.T, r *rand.Rand, k flashkit.Kernel, p flashkit.Problem) {
	t.Helper()
	args := drawArgs(r, p, true)
	drawMask(r, args.Mask, []float64{0, .01, .1, .5, 1}[r.IntN(5)], 1+r.IntN(2)*r.IntN(100))
	wide := *args
	wide.Mask = flashkit.Bools(make([]bool, p.Batch*p.QLen*p.KVLen), p.Batch, 1, p.QLen, p.KVLen)
	wide.O, wide.LSE = flashkit.NewArgs(p, flashkit.PassForward).O, flashkit.NewArgs(p, flashkit.PassForward).LSE
	for i := range wide.Mask.Bools() {
		wide.Mask.Bools()[i] = args.Mask.Bools()[i/p.QLen/p.KVLen*p.KVLen+i%p.KVLen]
	}
	change(args.V, func(at [4]int, x float32) float32 {
		if !args.Mask.Bools()[at[0]*p.KVLen+at[2]] && at[2]%3 == 0 {
			return float32(math.NaN())
		}
		return x
	})
	require.NoError(t, k.Compute(t.Context(), p, args))
	require.NoError(t, k.Compute(t.Context(), p, &wide))
	for name, pair := range map[string][2]*flashkit.Tensor{"o": {&args.O, &wide.O}, "lse": {&args.LSE, &wide.LSE}} {
		each(*pair[0], func(pos [4]int, at int) {
			got, want := get(pair[0], at), get(pair[1], at)
			require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%s: %s at %v, %s", k.Name, name, pos, strings.TrimSpace(p.String()))
		})
	}
}
