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

// drawForward draws a problem with several tiles and blocks. Some problems have several runs of
// blocks.
func drawForward(t *testing.T, r *rand.Rand, dtype flashkit.DType) flashkit.Problem {
	features := flashkit.Feature(r.Uint32()&r.Uint32()&uint32(flashkit.AllFeatures)) | flashkit.FeatureRagged
	p := drawProblem(t, r, features, dtype)
	p.QLen, p.KVLen = 1+r.IntN(120), 1+r.IntN(600)
	switch r.IntN(6) {
	case 0:
		p.Heads, p.QLen, p.KVLen, p.Dim, p.VDim = p.KVHeads, 1+r.IntN(20), 4000+r.IntN(6000), 1+r.IntN(4), 1+r.IntN(4)
	case 1:
		p.Heads, p.QLen, p.KVLen = p.KVHeads, 300+r.IntN(400), 1+r.IntN(150)
	}
	if r.IntN(2) == 0 {
		p.Band = flashkit.Window(r.IntN(500), r.IntN(500))
	}
	return p
}

// A sequence gives the same bits alone and in any batch: padded to any length, packed or in pages,
// with any other sequences. The number of workers does not change the bits either.
func TestForwardBitsOfSequences(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassForward || strings.Contains(k.Name, "decode") || strings.HasSuffix(k.Name, "generic") {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r, ran := rand.New(rand.NewPCG(seed, 0)), 0
			for i := range trials(t, 4, 4, 40) {
				p := drawForward(t, r, dtypes[i%3])
				if k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				ran++
				newSample(r, p).checkAlone(t, r, k)
			}
			t.Logf("%d trials", ran)
		})
	}
}

// checkAlone compares the result of a sequence in the batch with the result of the sequence alone.
func (s *sample) checkAlone(t *testing.T, r *rand.Rand, k flashkit.Kernel) {
	t.Helper()
	fill(&s.args.O, math.NaN())
	fill(&s.args.LSE, math.NaN())
	if s.p.Carry {
		s.startCarry(r)
	}
	b := r.IntN(s.p.Batch)
	if s.p.Score.Dropout != 0 {
		b = 0 // the dropped weights depend on the number of the sequence
	}
	one := s.alone(r, b)
	withProcs(t, 1+r.IntN(4))
	require.NoError(t, k.Compute(t.Context(), s.p, &s.args), s.about)
	withProcs(t, 1+r.IntN(4))
	require.NoError(t, k.Compute(t.Context(), one.p, &one.args), s.about)
	for name, pair := range map[string][2]*flashkit.Tensor{"o": {&one.args.O, &s.args.O}, "lse": {&one.args.LSE, &s.args.LSE}} {
		each(*pair[0], func(pos [4]int, at int) {
			got, want := get(pair[1], s.rowAt(pair[1], b, pos[1], pos[2])+pos[3]), get(pair[0], at)
			if math.Float64bits(got) != math.Float64bits(want) {
				t.Fatalf("%s: %s%v of sequence %d is %g, alone %g: %s", k.Name, name, pos, b, got, want, s.about)
			}
		})
	}
}
