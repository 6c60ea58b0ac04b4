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

// The forward pass gives the bits of a band or of a mask that shows the same pairs, although it skips
// the keys that no row of a tile sees. Float32 kernels of many rows cut the keys at the ends of the
// ranges, like the ends of a band. Kernels of few rows, and kernels whose products take several keys at
// a time, give the bits of the mask. Values that no row sees may be NaN.
func TestRangesGiveTheBitsOfBand(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassForward || k.Takes&flashkit.FeatureRanges == 0 || strings.HasSuffix(k.Name, "generic") {
			continue
		}
		asMask := k.MaxRows > 0 || strings.Contains(k.Name, "bf16") || strings.Contains(k.Name, "amx")
		t.Run(k.Name, func(t *testing.T) {
			r, ran := rand.New(rand.NewPCG(seed, 0)), 0
			for i := range trials(t, 12, 24, 200) {
				p := drawForward(t, r, dtypes[i%3])
				p.Score.Ranges, p.Score.Mask, p.Carry = 1+r.IntN(2), false, false
				if k.MaxRows > 0 {
					p.Heads, p.QLen = 2*p.KVHeads, 1+r.IntN(6)
				} else {
					p.Score.Sink = true // a plain call may use the routine for whole tiles, which has other parts
				}
				if k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				if ran++; asMask {
					newSample(r, p).compareMask(t, k)
					continue
				}
				p.Score.Ranges, p.Score.ALiBi = 0, false // slopes depend on the band's diagonal
				newSample(r, p).compareBand(t, r, k)
			}
			t.Logf("%d trials", ran)
		})
	}
}

func (s *sample) compareMask(t *testing.T, k flashkit.Kernel) {
	t.Helper()
	p, args := s.p, s.args
	args.Mask = flashkit.Zeros(flashkit.Bool, p.Batch, p.Heads, p.QLen, p.KVLen)
	for b := range p.Batch {
		for h := range p.Heads {
			for i := range s.n[b] {
				for j := range s.m[b] {
					ends := args.Ranges.Int32s()[pairAt(&args.Ranges, b, h, i, 0):][:2*p.Score.Ranges]
					args.Mask.Bools()[args.Mask.Offset(b, h, i)+j] = inRanges(ends, j)
				}
			}
		}
	}
	p.Score.Ranges, p.Score.Mask, args.Ranges = 0, true, flashkit.Tensor{}
	s.requireBits(t, k, s.p, &s.args, p, &args)
}

// compareBand compares with a call whose ranges are the band. If there are two ranges, one is empty.
func (s *sample) compareBand(t *testing.T, r *rand.Rand, k flashkit.Kernel) {
	t.Helper()
	p, args, count := s.p, s.args, 1+r.IntN(2)
	var c flashkit.Call
	require.NoError(t, c.Set(s.p, k.Pass, &s.args), s.about)
	p.Band, p.Score.Ranges = flashkit.Band{}, count
	args.Ranges = flashkit.Zeros(flashkit.Int32, p.Batch, 1, p.QLen, 2*count)
	for b := range p.Batch {
		of := c.Seq(b)
		for i := range of.N {
			lo, hi := of.Keys(i)
			ends := []int32{int32(lo), int32(hi), int32(hi), int32(hi)}
			if count == 2 && b%2 == 1 {
				ends[1], ends[2] = ends[0], ends[0]
			}
			copy(args.Ranges.Int32s()[args.Ranges.Offset(b, 0, i):], ends[:2*count])
		}
	}
	s.requireBits(t, k, p, &args, s.p, &s.args)
}

// requireBits requires that two calls have the same results.
func (s *sample) requireBits(t *testing.T, k flashkit.Kernel, p flashkit.Problem, a *flashkit.Args, q flashkit.Problem, b *flashkit.Args) {
	t.Helper()
	var got [2][]uint32
	for i, call := range []struct {
		p    flashkit.Problem
		args *flashkit.Args
	}{{p, a}, {q, b}} {
		fill(&a.O, math.NaN())
		fill(&a.LSE, math.NaN())
		require.NoError(t, k.Compute(t.Context(), call.p, call.args), s.about)
		got[i] = memoryOf([]*flashkit.Tensor{&a.O, &a.LSE})
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
		if k.Pass != flashkit.PassBackward || k.Takes&flashkit.FeatureRanges == 0 || strings.HasSuffix(k.Name, "generic") || k.Missing() != "" {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range trials(t, 6, 12, 100) {
				p := drawProblem(t, r, flashkit.FeatureRanges, k.DTypes[i%len(k.DTypes)])
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

// Ranges may exceed the keys of a short sequence. They give the bits of ranges that end at its last key.
func TestRangesBeyondKeys(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Takes&flashkit.FeatureRanges == 0 || k.Missing != nil && k.Missing() != "" {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			for i := range trials(t, 60, 100, 300) {
				p := drawProblem(t, r, flashkit.FeatureRanges|flashkit.FeatureRagged, k.DTypes[i%len(k.DTypes)])
				p.QLen, p.KVLen, p.Band, p.Score.Ranges = 2+r.IntN(4), 300+r.IntN(1700), flashkit.Band{}, 2
				if k.MaxRows > 0 {
					p.Heads = 2 * p.KVHeads
				}
				s := newSample(r, p)
				for _, x := range []*flashkit.Tensor{&s.args.LSE, &s.args.O} {
					fill(x, 1)
				}
				each(s.args.Ranges, func(at [4]int, i int) { // short ranges, with keys between them that no row sees
					if at[3] == 0 {
						a, b := r.IntN(p.KVLen-100), r.IntN(p.KVLen-100)
						ends := []int32{int32(a), int32(a + r.IntN(100)), int32(b), int32(b + r.IntN(100))}
						slices.Sort(ends)
						copy(s.args.Ranges.Int32s()[i:], ends)
					}
				})
				q := s.args
				q.Ranges = flashkit.Zeros(flashkit.Int32, p.Batch, p.Heads, p.QLen, 2*p.Score.Ranges)
				each(q.Ranges, func(at [4]int, i int) {
					q.Ranges.Int32s()[i] = min(s.args.Ranges.Int32s()[pairAt(&s.args.Ranges, at[0], at[1], at[2], at[3])], int32(s.m[at[0]]))
				})
				var got [2][]uint32
				for i, args := range []*flashkit.Args{&s.args, &q} {
					for _, x := range outputsOf(s, k.Pass) {
						fill(x, math.NaN())
					}
					require.NoError(t, k.Compute(t.Context(), s.p, args), s.about)
					got[i] = memoryOf(outputsOf(s, k.Pass))
				}
				require.True(t, slices.Equal(got[0], got[1]), s.about)
			}
		})
	}
}
