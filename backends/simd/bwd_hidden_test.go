package simd_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Rows and keys that the mask hides may hold any values. These values do not change a bit of the
// gradients of rows and keys that do not see them.
func TestBackwardMaskHides(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward || k.Takes&flashkit.FeatureMask == 0 {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range trials(t, 4, 4, 40) {
				p := drawBatch(r, dtypes[i%3], k.Takes)
				p.Score.Mask, p.KVLen, p.QLen = true, min(p.KVLen, 300), min(p.QLen, 200)
				if k.Fits(p.Ask(k.Pass)) == "" {
					newBatchTrial(r, p).checkHidden(t, r, k)
				}
			}
		})
	}
}

// checkHidden overwrites a row or a key, and compares the gradients that must not depend on it.
func (s *batchTrial) checkHidden(t *testing.T, r *rand.Rand, k flashkit.Kernel) {
	s.p.QLen, s.p.KVLen = 200, 300
	for b := range s.n {
		s.n[b], s.m[b] = min(s.n[b], 200), min(s.m[b], 300)
	}
	f := form(r.IntN(4) + 1)
	if f == single {
		f = padded
	}
	p, a, at := s.args(0, len(s.n), f)
	run := func() map[string][]float32 {
		require.NoError(t, k.Compute(t.Context(), p, a), s.String())
		all := map[string][]float32{}
		for _, name := range []string{"DQ", "DK", "DV"} {
			all[name] = values(*argument(a, name))
		}
		return all
	}
	want := run()
	b := r.IntN(len(s.n))
	if s.n[b] == 0 || s.m[b] == 0 {
		return
	}
	c := new(flashkit.Call)
	require.NoError(t, c.Set(p, k.Pass, a))
	seq, group := c.Seq(b), p.Heads/p.KVHeads
	sees := func(h, i, j int) bool {
		keys := c.VisibleRanges(&seq, b, h, i)
		return slices.ContainsFunc(keys[:], func(x [2]int) bool { return x[0] <= j && j < x[1] }) && s.sees(b, h, i, j)
	}
	with := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1000}[r.IntN(4)]
	name := []string{"Q", "DO", "K", "V"}[r.IntN(4)]
	x, key := argument(a, name), name == "K" || name == "V"
	head, place := r.IntN(x.Shape()[1]), r.IntN(s.n[b])
	if key {
		place = r.IntN(s.m[b])
	}
	batch, row := at(name, b, place)
	for e := range x.Shape()[3] {
		if e == 0 || r.IntN(2) == 0 {
			put(x, x.Offset(batch, head, row)+e, with)
		}
	}
	blind, seeing := map[[4]int]bool{}, map[[4]int]bool{} // gradient, batch, head, row
	for h := range p.Heads {
		for i := range s.n[b] {
			batch, row := at("DQ", b, i)
			if key && !(h/group == head && sees(h, i, place)) || !key && (h != head || i != place) {
				blind[[4]int{0, batch, h, row}] = true
			}
			if name == "K" && h/group == head && sees(h, i, place) {
				seeing[[4]int{0, batch, h, row}] = true
			}
		}
	}
	for g := range p.KVHeads {
		for j := range s.m[b] {
			batch, row := at("DK", b, j)
			if key && (g != head || j != place) || !key && (g != head/group || !sees(head, place, j)) {
				blind[[4]int{1, batch, g, row}] = true
			}
			if name == "Q" && g == head/group && sees(head, place, j) {
				seeing[[4]int{1, batch, g, row}] = true
			}
		}
	}
	got := run()
	for n, name := range []string{"DQ", "DK", "DV"} {
		i := 0
		each(*argument(a, name), func(at [4]int, _ int) {
			of := [4]int{min(n, 1), at[0], at[1], at[2]}
			if with != with && seeing[of] && got[name][i] == got[name][i] {
				t.Fatalf("%v form %d: NaN in row %d of head %d of sequence %d does not show in %s at %v", s, f, place, head, b, name, at)
			}
			if blind[of] && math.Float32bits(got[name][i]) != math.Float32bits(want[name][i]) {
				t.Fatalf("%v form %d: %g in row %d of head %d of sequence %d shows in %s at %v: %g, was %g", s, f, with, place, head, b, name, at, got[name][i], want[name][i])
			}
			i++
		})
	}
}

// A mask that hides nothing changes no result, even if operands have NaN or infinity. Only a
// non-finite result may become another non-finite value.
func TestBackwardMaskOfAll(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward || k.Takes&flashkit.FeatureMask == 0 || k.Name == "simd/bwd_generic" {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			for i := range trials(t, 4, 4, 40) {
				p := drawBatch(r, dtypes[i%3], flashkit.FeatureShift)
				p.KVLen, p.QLen = min(p.KVLen, 300), min(p.QLen, 200)
				if k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				s := newBatchTrial(r, p)
				s.density = 3
				p, a, _ := s.args(0, len(s.n), packed)
				for range r.IntN(4) {
					x := argument(a, []string{"Q", "DO", "K", "V"}[r.IntN(4)])
					if x.Len() > 0 {
						put(x, r.IntN(x.Len()), []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[r.IntN(3)])
					}
				}
				var all [2]map[string][]float32
				for masked := range all {
					p.Score.Mask, all[masked] = masked > 0, map[string][]float32{}
					s.setScores(p, a, 0, len(s.n))
					require.NoError(t, k.Compute(t.Context(), p, a), s.String())
					for _, name := range []string{"DQ", "DK", "DV"} {
						all[masked][name] = values(*argument(a, name))
					}
				}
				for name, want := range all[0] {
					for i, x := range want {
						got := all[1][name][i]
						require.True(t, x == got || x-x != 0 && got-got != 0, "%v: element %d of %s is %g, without a mask %g", s, i, name, got, x)
					}
				}
			}
		})
	}
}
