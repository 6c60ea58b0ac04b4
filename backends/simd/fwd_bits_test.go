package simd_test

import (
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

// drawForward draws a problem with several tiles and blocks. Some problems have several runs of
// blocks.
func drawForward(t *testing.T, r *rand.Rand, dtype flashkit.DType) flashkit.Problem {
	features := anyFeatures(r)&flashkit.Feature(r.Uint32()) | flashkit.FeatureRagged
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

// Gaps between rows change no bits. A kernel may read such rows from a copy.
func TestGapsBetweenRowsKeepBits(t *testing.T) {
	slow.UnderRace(t)
	r := rand.New(rand.NewPCG(1, 1))
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassForward || strings.Contains(k.Name, "decode") || strings.HasSuffix(k.Name, "generic") {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			ran := 0
			for _, dim := range []int{16, 24, 32, 64, 80} {
				for _, n := range []int{63, 64, 200, 300} {
					p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: n, KVLen: n + 5, Dim: dim, VDim: 48, Band: flashkit.Window(150, 0)}
					if k.Fits(p.Ask(k.Pass)) != "" {
						continue
					}
					ran++
					q, v, o := normal(r, p.Batch*p.Heads*(p.QLen+5)*p.Dim), normal(r, p.Batch*p.KVHeads*p.KVLen*p.VDim), make([]float32, p.Batch*p.Heads*p.QLen*p.VDim)
					args := flashkit.Args{Q: flashkit.F32(q, p.Batch, p.Heads, p.QLen, p.Dim), K: flashkit.F32(q, p.Batch, p.KVHeads, p.KVLen, p.Dim),
						V: flashkit.F32(v, p.Batch, p.KVHeads, p.KVLen, p.VDim), O: flashkit.F32(o, p.Batch, p.Heads, p.QLen, p.VDim)}
					require.NoError(t, k.Compute(t.Context(), p, &args))
					want := slices.Clone(o)
					fill(&args.O, math.NaN())
					args.K, args.V = withGaps(&args.K), withGaps(&args.V)
					require.NoError(t, k.Compute(t.Context(), p, &args))
					require.Equal(t, want, o, "%s", p)
				}
			}
			t.Logf("%d problems", ran)
		})
	}
}

func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// withGaps returns a copy of t with the rows of a sequence's heads side by side, and NaN between them.
func withGaps(t *flashkit.Tensor) flashkit.Tensor {
	s := t.Shape()
	step := s[1]*s[3] + 7
	x := flashkit.F32(make([]float32, s[0]*s[2]*step), s[0], s[1], s[2], s[3]).WithStrides(s[2]*step, s[3], step)
	for i := range x.Float32s() {
		x.Float32s()[i] = float32(math.NaN())
	}
	each(*t, func(pos [4]int, at int) {
		x.Float32s()[x.Offset(pos[0], pos[1], pos[2])+pos[3]] = t.Float32s()[at]
	})
	return x
}
