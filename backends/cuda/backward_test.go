package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// The number of sums of dQ is the number of groups of key tiles, also for a range of the keys.
func TestSumsOfDQ(t *testing.T) {
	for range 1000 {
		code, first, tiles := rand.IntN(10), rand.IntN(300), 1+rand.IntN(300)
		c := backwardCut{skew: int8(chains + code)}
		sums := map[int]bool{}
		for j := range tiles {
			sums[(first+j)>>code] = true
		}
		require.Equal(t, len(sums), c.sums(tiles, first), "%d %d %d", code, first, tiles)
	}
	require.Equal(t, 2, (&backwardCut{skew: -3}).sums(7, 0))
	require.Equal(t, 1, (&backwardCut{}).sums(7, 0))
}

// backwardInstance returns the instance of bwd_sm90 for a part of a whole.
func (b *Backend) backwardInstance(p, whole flashkit.Problem) instance {
	g := b.planBackward(bwdSM90, p, whole)
	return families[bwdSM90].instanceOf(&instanceCall{p: &p, whole: &whole, sms: b.dev.SMs, splits: g.splits, halves: g.halves})
}

// The query heads of a group are cut evenly if there are few blocks. If they cannot be, the rows
// are. Few blocks whose rows see all keys begin at different rows. The parts have workspace.
func TestPlanBackward(t *testing.T) {
	slow.UnderRace(t)
	b, f := openFake(t)
	for name, want := range map[string]backwardCut{
		"b1-h32-g8-n1024-m1024-d128-bf16-causal": {splits: 1, halves: true}, "b1-h32-g4-n1024-m1024-d128-bf16-causal": {splits: 4}, "b1-h64-g4-n1-m27000-d64-bf16": {splits: 1, skew: chains + 3}, "b4-h32-g1-n2048-m2048-d128-bf16-causal": {splits: 4}, "b8-h32-g8-n4096-m4096-d128-bf16": {splits: 1},
		"b1-h32-g2-n1024-m1024-d192-dv128-bf16": {splits: 8}, "b1-h8-g8-n2048-m2048-d64-bf16": {splits: 1, skew: 1}, "b2-h8-g8-n1024-m1024-d128-bf16": {splits: 1, skew: 2},
		"b1-h4-g4-n1024-m1024-d128-bf16": {splits: 1, halves: true, skew: 1}, "b1-h8-g8-n1024-m1024-d128-f16-causal": {splits: 1, halves: true}, "b1-h12-g12-n1024-m1024-d64-bf16-causal": {splits: 1}, "b1-h8-g8-n500-m3000-d128-bf16": {splits: 1, skew: -2},
		"b1-h8-g8-n128-m4096-d64-bf16": {splits: 1, skew: chains + 1}, "b3-h1-g1-n878-m12768-d128-bf16": {splits: 1, skew: chains + 2}, "b1-h8-g8-n128-m4096-d64-bf16-causal": {splits: 1, skew: chains + 1},
		"b1-h4-g1-n0-m100-d64-bf16": {splits: 1}, "b1-h8-g2-n100-m0-d64-bf16": {splits: 1}, "b0-h8-g2-n100-m100-d64-bf16": {splits: 1},
	} {
		p := problem(t, name)
		g, w := b.planBackward(bwdSM90, p, p), backwardWorkspace(bwdSM90, p)
		require.Equal(t, want, g.backwardCut, name)
		require.Zero(t, g.tile, name)
		main := instance(0)
		switch blocks := p.Batch * p.KVHeads * ceilDiv(p.KVLen, 128); {
		case want.halves:
			main = traitPairs
		case p.QLen > 0 && 0 < blocks && blocks <= b.dev.SMs:
			main = traitOnce
		}
		if want.splits > 1 {
			main = traitParts
			rows := p.Batch * p.KVHeads * want.splits * p.KVLen
			w.partO, w.partLSE = rows*p.Dim, rows*p.VDim
		}
		if want.skew != 0 {
			sums := want.sums(ceilDiv(p.KVLen, 128), 0)
			w.dqSum, w.counters = sums*w.dqSum, sums*(w.counters-1)+1
		}
		require.Equal(t, main, b.backwardInstance(p, p), name)
		require.Equal(t, w, g.workspace, name)
	}
	b.drv.LaunchDependentCluster = nil
	p := problem(t, "b1-h4-g4-n1024-m1024-d128-bf16")
	require.Equal(t, traitOnce, b.backwardInstance(p, p))
	c := newDeviceCall(t, b, "b1-h8-g1-n300-m300-d64-f16")
	defer c.close(t)
	require.NoError(t, c.forward())
	c.bwdOptions.Kernel, f.launches = "cuda/bwd_sm90", nil
	require.NoError(t, c.backward())
	require.Equal(t, []string{"bwd_sm90_delta_f16", "bwd_sm90_parts_f16_d64", "bwd_sm90_finish_f16", "bwd_sm90_sums_f16"}, f.names())
}

// A random pass has a partition that its kernels support, and its blocks begin at existing rows.
func TestPlansBackwardOfAll(t *testing.T) {
	b, _ := openFake(t)
	r := rand.New(rand.NewPCG(5, 6))
	skewed, halved := 0, 0
	for range 6000 {
		p, _ := randomProblem(r)
		s := &families[bwdSM90]
		if !s.fits(&b.dev, p) {
			continue
		}
		g := b.planBackward(bwdSM90, p, p)
		require.True(t, g.splits >= 1 && p.Heads/p.KVHeads%g.splits == 0 && (g.splits == 1 || !g.halves), p)
		require.LessOrEqual(t, g.partO, maxGroupWords, p)
		if g.halves {
			halved++
			require.LessOrEqual(t, s.dims[s.pad(p)].dim, groupedDim, p)
		}
		if g.skew == 0 {
			continue
		}
		skewed++
		tile := s.shape(&p)
		rows, last := ceilDiv(p.QLen, tile.rows), ceilDiv(p.KVLen, tile.keys)-1
		if g.halves {
			rows = ceilDiv(rows, 2)
		}
		if begin := last << max(g.skew-1, 0) >> max(-g.skew, 0); begin >= rows {
			t.Errorf("%v: block %d begins at tile %d of %d", p, last, begin, rows)
		}
		require.True(t, !hasFeatures(&p) && (!banded(p) || g.skew >= chains && causalLike(&p) && b.backwardInstance(p, p)&(traitGroups|traitUp) == 0), p)
	}
	require.Positive(t, skewed)
	require.Positive(t, halved)
}

// Key tiles share sums of dQ under a causal mask too, and the call then zeroes the sums, because some
// of them belong to keys that the first rows do not see. A window hides the first keys from the last
// rows, so its key tiles share none.
func TestSharedSumsUnderCausalMask(t *testing.T) {
	b, f := openFake(t)
	for name, shares := range map[string]bool{
		"b1-h1-g1-n101-m13134-d192-bf16-causal": true, "b3-h1-g1-n878-m12768-d128-bf16-causal": true, "b4-h2-g2-n299-m20164-d96-bf16-causal": true,
		"b1-h1-g1-n101-m13134-d192-bf16-window5000.0": false, "b1-h4-g1-n101-m13134-d128-bf16-causal": false, "b1-h1-g1-n2048-m2048-d128-bf16-causal": false,
	} {
		p := problem(t, name)
		g := b.planBackward(bwdSM90, p, p)
		require.Equal(t, shares, g.skew >= chains, name)
	}
	c := newDeviceCall(t, b, "b1-h1-g1-n101-m3134-d64-bf16-causal")
	defer c.close(t)
	require.NoError(t, c.forward())
	c.bwdOptions.Kernel = "cuda/bwd_sm90"
	g := b.planBackward(bwdSM90, c.p, c.p)
	require.GreaterOrEqual(t, g.skew, int8(chains))
	before := f.memsets.Load()
	require.NoError(t, c.backward())
	require.Equal(t, before+1, f.memsets.Load())
}

// A part has the partition of its whole, and its position there; with only some of the rows, blocks
// share none.
func TestPlanBackwardPart(t *testing.T) {
	b, _ := openFake(t)
	for name, tiles := range map[string][2]int16{"b1-h4-g4-n1024-m1024-d128-bf16": {4, -3}, "b1-h8-g8-n2048-m2048-d64-bf16": {2, -3}} {
		whole := problem(t, name)
		want := b.planBackward(bwdSM90, whole, whole)
		rows, keys := whole, whole
		rows.QLen, keys.KVLen = 512, 384
		rows.Band = whole.Band.Shift(whole.Band.Diagonal(whole.QLen, whole.KVLen) + 256 - rows.Band.Diagonal(rows.QLen, rows.KVLen))
		keys.Band = whole.Band.Shift(whole.Band.Diagonal(whole.QLen, whole.KVLen) - 384 - keys.Band.Diagonal(keys.QLen, keys.KVLen))
		for i, p := range []flashkit.Problem{rows, keys} {
			g := b.planBackward(bwdSM90, p, whole)
			require.Equal(t, want.backwardCut, g.backwardCut, name)
			require.Equal(t, tiles[i], g.tile, name)
			main := b.backwardInstance(whole, whole)
			if i == 0 && want.halves {
				main = 0
			}
			require.Equal(t, main, b.backwardInstance(p, whole), name)
		}
	}
}
