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

// Blocks that share a dBias or a dQ add to the shared sum in a fixed order, for any number of
// workers and any timing.
func TestBackwardOrder(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward || k.Takes&flashkit.FeatureBias == 0 || strings.HasSuffix(k.Name, "_generic") {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range 1 + trials(t, 4, 4, 40)/4 {
				p := flashkit.Problem{Batch: 1 + r.IntN(6), Heads: 4, KVHeads: 1 << r.IntN(3), QLen: 500, KVLen: 300, Dim: 64, VDim: 64, DType: dtypes[i%3]}
				p.Score.Bias, p.Score.Mask = true, r.IntN(3) == 0
				if k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				s := newBatchTrial(r, p)
				f := []form{padded, packed, full}[r.IntN(3)]
				if f == full {
					s.p, s.shared = p, [3]bool{true, r.IntN(2) == 0, r.IntN(4) == 0}
					for b := range s.n {
						s.n[b], s.m[b] = p.QLen, p.KVLen
					}
				}
				withProcs(t, 1)
				want := s.run(t, k, 0, len(s.n), f)
				withProcs(t, 9)
				for range 3 {
					require.Equal(t, want, s.run(t, k, 0, len(s.n), f), s)
				}
			}
		})
	}
}

// setScores sets the inputs of features for the sequences [b0, b1). Elements of a bias that belong
// to no such sequence are NaN.
func (s *batchTrial) setScores(p flashkit.Problem, a *flashkit.Args, b0, b1 int) {
	x := s.shape([4]int{p.Batch, p.Heads, p.QLen, p.KVLen})
	if p.Score.Mask {
		a.Mask = flashkit.Bools(make([]bool, x[0]*x[1]*x[2]*x[3]), x[0], x[1], x[2], x[3])
	}
	if p.Score.Bias {
		for _, t := range []*flashkit.Tensor{&a.Bias, &a.DBias} {
			*t = newTensorOf(s.bias, x)
			fill(t, math.NaN())
		}
	}
	if p.Score.Ranges != 0 {
		a.Ranges = flashkit.Zeros(flashkit.Int32, p.Batch, p.Heads, p.QLen, 2*p.Score.Ranges)
	}
	if p.Score.ALiBi {
		a.Slopes = newTensorOf(flashkit.Float32, [4]int{x[0], p.Heads, 1, 1})
	}
	if p.Score.Sink {
		a.Sink, a.DSink = newTensorOf(flashkit.Float32, [4]int{1, p.Heads, 1, 1}), newTensorOf(flashkit.Float32, [4]int{1, p.Heads, 1, 1})
	}
	for b := b0; b < b1; b++ {
		at := b
		if p.Batch < s.p.Batch { // alone
			at = 0
		}
		for h := range p.Heads {
			if p.Score.ALiBi {
				put(&a.Slopes, a.Slopes.Repeated(at, h, 0), float64(s.of("Slopes", b, h, 0, 0))/8)
			}
			if p.Score.Sink {
				put(&a.Sink, h, float64(s.number("Sink", 0, h, 0, 0)))
			}
		}
		s.setRanges(p, a, b, at)
		n := s.shape([4]int{1, p.Heads, s.n[b], s.m[b]})
		for h := range n[1] {
			for i := range min(n[2], s.n[b]) {
				for j := range n[3] {
					if p.Score.Mask {
						a.Mask.Bools()[a.Mask.Repeated(at, h, i)+j] = s.sees(b, h, i, j)
					}
					if p.Score.Bias {
						put(&a.Bias, a.Bias.Repeated(at, h, i)+j, float64(s.of("Bias", b, h, i, j)))
					}
				}
			}
		}
	}
}
