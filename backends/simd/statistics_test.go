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

// expectKeyMass returns the expected sums of keys, given the previous contents of O and LSE.
func (s *sample) expectKeyMass() *want {
	t := &s.args.KeyMass
	sums := wanted(t)
	for b := range s.p.Batch {
		for h := range s.p.Heads {
			at := t.Offset(b, h, 0)
			for j := range s.p.KVLen {
				sums.add(at+j, 0, 0)
			}
			for i := range s.n[b] {
				_, lse := s.forward(b, h, i)
				for _, x := range s.pairs(b, h, i) {
					if w := math.Exp(x.score - lse); !math.IsInf(x.score, -1) {
						sums.add(at+x.key, w, w*(1+math.Abs(x.score)/50)+1e-3) // a float32 score has an error relative to its size
					}
				}
			}
		}
	}
	return sums
}

// Row maxima and sums of keys of random problems with any features equal the definition. They
// have the same bits alone, in any batch and for any number of workers. O and LSE have the bits of a plain call.
func TestStatistics(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, ran := rand.New(rand.NewPCG(seed, 0)), map[string]int{}
	for i := range trials(t, 20, 50, 250) {
		features := flashkit.Feature(r.Uint32()&r.Uint32())&^(flashkit.FeatureRowMax|flashkit.FeatureKeyMass)&flashkit.AllFeatures | []flashkit.Feature{
			flashkit.FeatureRowMax, flashkit.FeatureKeyMass, flashkit.FeatureRowMax | flashkit.FeatureKeyMass}[r.IntN(3)]
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
			s.checkStatistics(t, r, k)
			x, y := s.ran(t, k, 1+r.IntN(4)), one.ran(t, k, 1+r.IntN(4))
			each(y.args.O, func(pos [4]int, at int) {
				if pos[3] == 0 && p.RowMax {
					got, want := get(&x.args.RowMax, s.rowAt(&x.args.RowMax, b, pos[1], pos[2])), get(&y.args.RowMax, y.args.RowMax.Offset(0, pos[1], pos[2]))
					require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%s: sequence %d alone: %s", k.Name, b, s.about)
				}
			})
			for h := 0; h < p.Heads && p.KeyMass && (b == 0 || p.Score.Dropout == 0) && s.m[b] > 0; h++ {
				want := y.args.KeyMass.Float32s()[y.args.KeyMass.Offset(0, h, 0):][:s.m[b]]
				require.Equal(t, want, x.args.KeyMass.Float32s()[x.args.KeyMass.Offset(b, h, 0):][:s.m[b]], "%s: sequence %d alone: %s", k.Name, b, s.about)
			}
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

func (s *sample) checkStatistics(t *testing.T, r *rand.Rand, k flashkit.Kernel) {
	x := s.ran(t, k, 1+r.IntN(4))
	if s.p.RowMax {
		want := s.expectRowMax()
		want.t = &x.args.RowMax
		want.check(t, k.Name+": rowmax", s.about, 1e-5)
	}
	if s.p.KeyMass {
		want := s.expectKeyMass()
		want.t = &x.args.KeyMass
		want.check(t, k.Name+": keymass", s.about, s.precise(1e-5))
	}
	plain := *s
	plain.p.RowMax, plain.p.KeyMass, plain.args.RowMax, plain.args.KeyMass = false, false, flashkit.Tensor{}, flashkit.Tensor{}
	y := plain.ran(t, k, 1+r.IntN(4))
	require.Equal(t, memoryOf([]*flashkit.Tensor{&y.args.O, &y.args.LSE}), memoryOf([]*flashkit.Tensor{&x.args.O, &x.args.LSE}), "%s: %s", k.Name, s.about)
}
