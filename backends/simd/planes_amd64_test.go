//go:build !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
)

// Three planes must represent a float32 exactly. The routine must report outliers.
func TestSplitRows(t *testing.T) {
	if reason := amxbf16().missing(); reason != "" {
		t.Skip(reason)
	}
	r := rand.New(rand.NewPCG(1, 2))
	outliers := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 0x1p58, -math.MaxFloat32}
	for n := 1; n < 70; n++ {
		src := make([]float32, n)
		for i := range src {
			src[i] = float32(math.Ldexp(r.Float64()-.5, r.IntN(158)-100))
		}
		out := -1
		if n%3 == 0 {
			out = r.IntN(n)
			src[out] = outliers[n/3%len(outliers)]
		}
		dst := make([]uint16, planes*n)
		require.Equal(t, out < 0, splitRowsAMXBF16(&dst[0], n, 2*n, &src[0], n, n, 1), "n %d", n)
		for i, x := range src {
			if i == out {
				x = 0
			}
			sum := float32(0)
			for p := range planes {
				sum += half.FromBF16(dst[p*n+i])
			}
			require.Equal(t, x, sum, "element %d of %d", i, n)
		}
	}
}

// The planes of a pair of rows represent both rows exactly, except for numbers below the smallest
// normal number. NaN stays NaN.
func TestPlanePairs(t *testing.T) {
	if reason := avx512.missing(); reason != "" {
		t.Skip(reason)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for range 200 {
		pairs, plane := 1+r.IntN(20), 0
		s := make([]float32, 2*pairs*pairLanes)
		for i := range s {
			s[i] = float32(math.Ldexp(r.NormFloat64(), r.IntN(120)-90))
			if r.IntN(100) == 0 {
				s[i] = float32(math.NaN())
			}
		}
		plane = pairs*pairLanes + r.IntN(40)
		p := newFenced((planes-1)*plane + pairs*pairLanes)
		planePairsAMXBF16(&words(p.x)[0], 4*plane, &s[0], pairs)
		w := halves(words(p.x))
		for i, x := range s {
			got := planeSum(w, 2*plane, 2*(i/(2*pairLanes)*pairLanes+i%pairLanes)+i/pairLanes%2)
			near := math.Abs(float64(got-x)) < 0x1p-126
			require.True(t, near || got != got && x != x, "element %d of %d pairs: %g, want %g", i, pairs, got, x)
		}
		p.requireFence(t, pairs*pairLanes, plane)
	}
}
