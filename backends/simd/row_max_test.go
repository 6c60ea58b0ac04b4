package simd_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// expectRowMax returns the expected row maxima, given the previous contents of LSE and RowMax.
func (s *sample) expectRowMax() *want {
	a := &s.args
	tops := wanted(&a.RowMax)
	for b := range s.p.Batch {
		for h := range s.p.Heads {
			for i := range s.n[b] {
				top := math.Inf(-1)
				for _, x := range s.pairs(b, h, i) {
					top = max(top, x.score)
				}
				if at := s.rowAt(&a.LSE, b, h, i); s.p.Carry && !math.IsInf(get(&a.LSE, at), -1) {
					top = max(top, get(&a.RowMax, s.rowAt(&a.RowMax, b, h, i)))
				}
				tops.add(s.rowAt(&a.RowMax, b, h, i), top, 1+math.Abs(top))
			}
			for i := s.n[b]; i < s.p.QLen && !s.qPack; i++ {
				tops.add(a.RowMax.Offset(b, h, i), math.Inf(-1), 0)
			}
		}
	}
	return tops
}

// Row maxima of random problems with any features equal the definition. They have the same bits alone,
// in any batch and for any number of workers. O and LSE have the bits of a call without row maxima.
func TestRowMax(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, ran := rand.New(rand.NewPCG(seed, 0)), map[string]int{}
	for i := range trials(t, 40, 200, 1000) {
		features := flashkit.Feature(r.Uint32()&r.Uint32())&flashkit.AllFeatures | flashkit.FeatureRowMax
		p := drawProblem(t, r, features, dtypes[i%3])
		switch r.IntN(6) {
		case 0:
			p.KVLen = 1 + r.IntN(2000)
		case 1: // several runs of keys
			p.Heads, p.QLen, p.KVLen, p.Dim, p.VDim = p.KVHeads, 1+r.IntN(20), 5000+r.IntN(3000), 1+r.IntN(4), 1+r.IntN(4)
		case 2: // short heads
			p.QLen, p.KVLen, p.Ragged, p.Page = 1+r.IntN(3), 1+r.IntN(40), false, 0
		}
		s := newSample(r, p)
		if p.Carry {
			s.startCarry(r)
		}
		b := r.IntN(p.Batch)
		one := s.alone(r, b)
		for _, k := range simd.New().Kernels() {
			if k.Pass != flashkit.PassForward || k.Fits(p.Ask(k.Pass)) != "" {
				continue
			}
			ran[k.Name]++
			s.checkRowMax(t, r, k)
			x, y := s.ran(t, k, 1+r.IntN(4)), one.ran(t, k, 1+r.IntN(4))
			each(y.args.RowMax, func(pos [4]int, at int) {
				got := get(&x.args.RowMax, s.rowAt(&x.args.RowMax, b, pos[1], pos[2]))
				require.Equal(t, math.Float64bits(get(&y.args.RowMax, at)), math.Float64bits(got), "%s: sequence %d alone: %s", k.Name, b, s.about)
			})
		}
	}
	t.Logf("%v", ran)
}

// ran returns a copy of the sample with outputs of its own, after a call.
func (s *sample) ran(t *testing.T, k flashkit.Kernel, workers int) *sample {
	x := *s
	x.args.Workers = workers
	for _, out := range outputsOf(&x, k.Pass) {
		*out = s.copied(out)
	}
	require.NoError(t, k.Compute(t.Context(), x.p, &x.args), s.about)
	return &x
}

func (s *sample) checkRowMax(t *testing.T, r *rand.Rand, k flashkit.Kernel) {
	x, want := s.ran(t, k, 1+r.IntN(4)), s.expectRowMax()
	want.t = &x.args.RowMax
	want.check(t, k.Name+": rowmax", s.about, 1e-5)
	plain := *s
	plain.p.RowMax, plain.args.RowMax = false, flashkit.Tensor{}
	y := plain.ran(t, k, 1+r.IntN(4))
	require.Equal(t, memoryOf([]*flashkit.Tensor{&y.args.O, &y.args.LSE}), memoryOf([]*flashkit.Tensor{&x.args.O, &x.args.LSE}), "%s: %s", k.Name, s.about)
}
