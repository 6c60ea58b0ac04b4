package simd_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Kernels match the portable kernel with random combinations of features, over several tiles and
// blocks. Other tests compare the portable kernel with the definition.
func TestBackwardFeaturesLikePortable(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	forward, portable := kernel(t, "simd/fwd_generic"), kernel(t, "simd/bwd_generic")
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward || strings.HasSuffix(k.Name, "_generic") {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range trials(t, 4, 4, 40) {
				p := drawBatch(r, dtypes[i%3], 0)
				p.QLen, p.KVLen, p.Heads = min(p.QLen, 300), min(p.KVLen, 700), min(p.Heads, 6)
				addFeatures(&p, flashkit.Feature(r.Uint32())&k.Takes&^flashkit.FeatureShift)
				s := newBatchTrial(r, p)
				if k.Fits(s.p.Ask(k.Pass)) != "" { // of the padded lengths
					continue
				}
				delete(s.size, "K")
				delete(s.size, "Q")
				p, a, _ := s.args(0, len(s.n), []form{padded, packed, mixed}[r.IntN(3)])
				for _, in := range []*flashkit.Tensor{&a.Q, &a.K} {
					each(*in, func(_ [4]int, at int) { put(in, at, get(in, at)*2) })
				}
				withProcs(t, 1+r.IntN(3))
				require.NoError(t, forward.Compute(t.Context(), p, a), s)
				want := s.gradients(t, portable, p, a)
				for name, got := range s.gradients(t, k, p, a) {
					s.requireNear(t, name, got, want[name])
				}
			}
		})
	}
}

// gradients fills all outputs with NaN, runs a kernel and returns the outputs.
func (s *batchTrial) gradients(t *testing.T, k flashkit.Kernel, p flashkit.Problem, a *flashkit.Args) map[string][]float32 {
	all := map[string][]float32{}
	for _, name := range []string{"DQ", "DK", "DV", "DBias", "DSink"} {
		fill(argument(a, name), math.NaN())
	}
	require.NoError(t, k.Compute(t.Context(), p, a), s)
	for _, name := range []string{"DQ", "DK", "DV", "DBias", "DSink"} {
		if x := argument(a, name); !x.IsZero() {
			all[name] = values(*x)
		}
	}
	return all
}

// requireNear fails if an element of got differs from want by more than a small fraction of the
// largest element.
func (s *batchTrial) requireNear(t *testing.T, name string, got, want []float32) {
	t.Helper()
	largest := 1e-2
	for _, x := range want {
		if x == x {
			largest = max(largest, math.Abs(float64(x)))
		}
	}
	part := map[flashkit.DType]float64{flashkit.Float32: 2e-5, flashkit.Float16: 2e-3, flashkit.BFloat16: 3e-2}[s.p.DType]
	for i, x := range want {
		near := math.Abs(float64(got[i])-float64(x)) <= part*largest
		require.True(t, near || x != x && got[i] != got[i], "%v: %s[%d] is %g, want %g, the largest is %g", s, name, i, got[i], x, largest)
	}
}
