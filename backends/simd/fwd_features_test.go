package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// forwards returns the forward kernels that support p.
func forwards(p *flashkit.Problem) (list []flashkit.Kernel) {
	for _, k := range simd.New().Kernels() {
		if k.Pass == flashkit.PassForward && k.Fits(p.Ask(k.Pass)) == "" {
			list = append(list, k)
		}
	}
	return list
}

// precisionOf returns the allowed error of a kernel's O, relative to the magnitudes of its terms.
// Scores of the vector kernels are float32, and some weights have 16 bits.
func precisionOf(k *flashkit.Kernel) float64 {
	switch {
	case strings.HasSuffix(k.Name, "bf16"):
		return 0x1p-8
	case strings.HasSuffix(k.Name, "fhm"):
		return 0x1p-11
	case strings.HasSuffix(k.Name, "generic"):
		return digits
	}
	return 2e-5
}

// Forward kernels match the definition with each single feature and with many combinations of
// features. Items have several tiles, and rows have several blocks of keys.
func TestForwardFeatures(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	draw := func(t *testing.T, f flashkit.Feature, i int) {
		p := drawProblem(t, r, f, dtypes[i%3])
		p.Batch, p.QLen, p.KVLen = 1+r.IntN(2), 1+r.IntN(100), 1+r.IntN(700)
		if i%4 == 3 {
			p.Heads, p.QLen, p.Dim, p.VDim = p.KVHeads, 1+r.IntN(70), 1+r.IntN(100), 1+r.IntN(100)
			p.Scale = 0
		}
		s := newSample(r, p)
		for _, k := range forwards(&p) {
			s.checkForward(t, r, k, precisionOf(&k))
		}
	}
	for bit := flashkit.Feature(1); bit < flashkit.AllFeatures; bit <<= 1 {
		t.Run(fmt.Sprint(bit), func(t *testing.T) {
			for i := range rounds {
				draw(t, bit, i)
			}
		})
	}
	t.Run("mixed", func(t *testing.T) {
		for i := range 10 * rounds {
			draw(t, anyFeatures(r)&flashkit.Feature(r.Uint32()), i)
		}
	})
}

// A sink and an LSE of earlier keys may be far above or far below the scores.
func TestSinkAndCarryFarAway(t *testing.T) {
	slow.UnderRace(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	far := []float64{math.Inf(-1), -1e4, -200, -70, -3, 0, 3, 50, 59, 61, 70, 90, 200, 1e4}
	for i := range 20 {
		p := drawProblem(t, r, []flashkit.Feature{flashkit.FeatureSink, flashkit.FeatureCarry, flashkit.FeatureSink | flashkit.FeatureCarry}[i%3], flashkit.Float32)
		p.Dim, p.VDim, p.Scale = 1+r.IntN(40), 1+r.IntN(40), 0
		s := newSample(r, p)
		if p.Score.Sink {
			each(s.args.Sink, func(_ [4]int, i int) { put(&s.args.Sink, i, far[r.IntN(len(far))]) })
		}
		for _, k := range forwards(&p) {
			fill(&s.args.O, math.NaN())
			fill(&s.args.LSE, math.NaN())
			if p.Carry {
				s.startCarry(r)
				each(s.args.LSE, func(_ [4]int, i int) {
					if x := get(&s.args.LSE, i); !math.IsInf(x, 0) {
						put(&s.args.LSE, i, far[1+r.IntN(len(far)-1)])
					}
				})
			}
			o, lse := s.expectForward()
			require.NoError(t, k.Compute(t.Context(), p, &s.args))
			o.check(t, "o", k.Name+": "+s.about, digits)
			lse.check(t, "lse", k.Name+": "+s.about, digits)
		}
	}
}

// A key that a mask hides from a row may hold any values, which do not change the row's result.
func TestForwardMaskHidesKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for i := range rounds {
		p := drawProblem(t, r, flashkit.FeatureMask|flashkit.Feature(r.Uint32())&(flashkit.FeatureBias|flashkit.FeatureRagged|flashkit.FeaturePage|flashkit.FeatureSink), dtypes[i%3])
		p.QLen, p.KVLen = 1+r.IntN(80), 1+r.IntN(300)
		if i%2 == 0 {
			p.VDim = 16 // finite can check values of this length one block at a time
		}
		s := newSample(r, p)
		b, g := r.IntN(p.Batch), r.IntN(p.KVHeads)
		if s.m[b] == 0 {
			continue
		}
		key, group := r.IntN(s.m[b]), p.Heads/p.KVHeads
		shared := func(c, h int) bool { // sequences may share pages
			return len(s.table) > 0 && c != b && h/group == g && slices.Contains(s.table[c], s.table[b][key/p.Page])
		}
		for _, k := range forwards(&p) {
			fill(&s.args.O, math.NaN())
			require.NoError(t, k.Compute(t.Context(), p, &s.args), s.about)
			before := s.copied(&s.args.O)
			at, vAt := s.keyAt(&s.args.K, b, g, key), s.keyAt(&s.args.V, b, g, key)
			old, oldV := get(&s.args.K, at), get(&s.args.V, vAt)
			put(&s.args.K, at, []float64{math.NaN(), math.Inf(1), 1000}[r.IntN(3)])
			put(&s.args.V, vAt, []float64{math.NaN(), math.Inf(-1), 1000}[r.IntN(3)])
			require.NoError(t, k.Compute(t.Context(), p, &s.args), s.about)
			put(&s.args.K, at, old)
			put(&s.args.V, vAt, oldV)
			for c := range p.Batch {
				for h := range p.Heads {
					for row := range s.n[c] {
						if c == b && h/group == g && slices.Contains(s.seen(b, h, row), key) || shared(c, h) {
							continue
						}
						for d := range p.VDim {
							at := s.rowAt(&s.args.O, c, h, row) + d
							require.Equal(t, math.Float64bits(get(&before, at)), math.Float64bits(get(&s.args.O, at)), "%s: o[%d %d %d %d], key %d of sequence %d: %s", k.Name, c, h, row, d, key, b, s.about)
						}
					}
				}
			}
		}
	}
}
