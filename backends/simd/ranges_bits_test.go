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

// The forward pass gives the bits of a mask that shows the same pairs, although it skips the keys
// that no row of a tile sees. Values that no row sees may be NaN.
func TestRangesGiveTheBitsOfMask(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassForward || k.Takes&flashkit.FeatureRanges == 0 || strings.HasSuffix(k.Name, "generic") {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r, ran := rand.New(rand.NewPCG(seed, 0)), 0
			for i := range trials(t, 12, 24, 200) {
				p := drawForward(t, r, dtypes[i%3])
				if k.MaxRows > 0 {
					p.Heads, p.QLen = 2*p.KVHeads, 1+r.IntN(6)
				}
				p.Score.Ranges, p.Score.Mask, p.Carry = 1+r.IntN(2), false, false
				if k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				ran++
				newSample(r, p).compareMask(t, k)
			}
			t.Logf("%d trials", ran)
		})
	}
}

func (s *sample) compareMask(t *testing.T, k flashkit.Kernel) {
	t.Helper()
	var got [2][]uint32
	p, args := s.p, s.args
	masked := flashkit.Zeros(flashkit.Bool, p.Batch, p.Heads, p.QLen, p.KVLen)
	for b := range p.Batch {
		for h := range p.Heads {
			for i := range s.n[b] {
				for j := range s.m[b] {
					ends := args.Ranges.Int32s()[pairAt(&args.Ranges, b, h, i, 0):][:2*p.Score.Ranges]
					masked.Bools()[masked.Offset(b, h, i)+j] = inRanges(ends, j)
				}
			}
		}
	}
	for i := range got {
		fill(&args.O, math.NaN())
		fill(&args.LSE, math.NaN())
		require.NoError(t, k.Compute(t.Context(), p, &args), s.about)
		got[i] = memoryOf([]*flashkit.Tensor{&args.O, &args.LSE})
		p.Score.Ranges, args.Ranges, p.Score.Mask, args.Mask = 0, flashkit.Tensor{}, true, masked
	}
	require.True(t, slices.Equal(got[1], got[0]), s.about)
}

// The backward pass gives the bits of any batch, layout and number of workers: see newSample. It
// also gives the same bits whether blocks of keys are skipped or only their pairs hidden.
func TestRangesBackwardBits(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward || k.Takes&flashkit.FeatureRanges == 0 || strings.HasSuffix(k.Name, "generic") || k.Fits(flashkit.Problem{}.Ask(k.Pass)) != "" {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range trials(t, 6, 12, 100) {
				p := drawProblem(t, r, flashkit.FeatureRanges, dtypes[i%3])
				p.QLen, p.KVLen = 200+r.IntN(300), 200+r.IntN(500)
				s := newSample(r, p)
				for _, x := range []*flashkit.Tensor{&s.args.LSE, &s.args.O} {
					fill(x, 1)
				}
				var want []uint32
				for _, procs := range []int{1, 2, 7} { // the size of a block depends on the workers
					withProcs(t, procs)
					for _, x := range outputsOf(s, k.Pass) {
						fill(x, math.NaN())
					}
					require.NoError(t, k.Compute(t.Context(), s.p, &s.args), s.about)
					got := memoryOf(outputsOf(s, k.Pass))
					if want == nil {
						want = got
					}
					require.True(t, slices.Equal(want, got), "%d workers: %s", procs, s.about)
				}
			}
		})
	}
}
