package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// A plan of few blocks covers every row once and gives each multiprocessor at most one tile, two
// under a mask. It needs no counter; split keys have workspace. Other masked calls have a counter.
func TestPlanHopper(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	few, parts, pairs := 0, 0, 0
	for range 20000 {
		p, pass := randomProblem(r)
		if pass != flashkit.PassForward || !families[fwdSM90].fits(&Device{Major: 9}, p) {
			continue
		}
		sms := 1 + r.IntN(150)
		h := planHopper(p, sms)
		dim := families[fwdSM90].pad(p)
		tile, heads := families[fwdSM90].shapes[dim], p.Batch*p.Heads
		require.Positive(t, h.splits, p)
		if h.cycles == 0 {
			require.Equal(t, 1, h.splits, p)
			require.Equal(t, workspace{counters: h.counters}, h.workspace, p)
			if h.counters > 0 {
				require.Equal(t, rowTiles{tall: int32(ceilDiv(p.QLen, tile.rows))}, h.rows, p)
			}
			continue
		}
		few++
		low, rows := int(h.rows.low), int(h.rows.lowRows)
		require.Zero(t, h.counters+int(h.rows.tall), p)
		if low*heads > sms {
			pairs++
			require.True(t, banded(p) && h.splits == 1 && low*heads <= 2*sms, p)
		} else {
			require.LessOrEqual(t, low*heads*h.splits, sms, p)
		}
		require.True(t, rows > 0 && rows%groupRows == 0 && rows <= tile.rows && low == ceilDiv(p.QLen, rows), p)
		if h.splits == 1 {
			require.Zero(t, h.bytes(), p)
			continue
		}
		parts++
		require.LessOrEqual(t, rows, splitGroups*groupRows, p)
		words := heads * p.QLen * h.splits
		require.Equal(t, workspace{partO: words * map[int]int{64: 64, 80: 128, 96: 128, 128: 128, 192: 256, 256: 256}[families[fwdSM90].dims[dim].vDim], partLSE: 2 * words}, h.workspace, p)
	}
	require.Positive(t, few)
	require.Positive(t, parts)
	require.Positive(t, pairs)
}

// A multiprocessor with a long tile takes a short one next.
func TestPairs(t *testing.T) {
	for name, want := range map[string]int{
		"b1-h16-g16-n2048-m2048-d128-bf16-causal":         17,
		"b1-h32-g8-n1024-m1024-d128-bf16-causal":          9,
		"b1-h11-g11-n2048-m2048-d128-bf16-causal":         16, // 176 tiles: the longest has no partner
		"b1-h16-g16-n2048-m2048-d128-bf16-window255.0":    6,
		"b2-h32-g8-n512-m65536-d128-bf16-causal":          1021, // head by head
		"b1-h16-g16-n2048-m2048-d128-bf16-causal-shift-1": 17,
	} {
		p := problem(t, name)
		h := planHopper(p, 132)
		require.Equal(t, want, h.steps, name)
		require.Equal(t, rowTiles{low: int32(p.QLen / 128), lowRows: 128}, h.rows, name)
		require.Zero(t, h.counters, name)
	}
}

// Warpgroups take turns, unless three of them have dealt tiles.
func TestTurns(t *testing.T) {
	for name, want := range map[string]int8{
		"b16-h32-g32-n1024-m1024-d64-bf16-causal": 0, "b16-h32-g32-n1024-m1024-d64-bf16": 1, "b1-h12-g12-n1024-m1024-d64-bf16-causal": 1,
		"b16-h16-g16-n1024-m1024-d128-bf16-causal": 1, "b8-h16-g16-n4096-m4096-d72-bf16-causal": 0,
	} {
		p := problem(t, name)
		h := planHopper(p, 132)
		require.Equal(t, want, warpgroupTurns(h.counters > 0, families[fwdSM90].shape(&p).rows), name)
	}
}

// A part has tiles of the same rows, the same split of keys, and the workspace for them as its
// whole. The whole as a part of itself has the plan of the whole.
func TestPlanPart(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 4))
	cut := 0
	for range 20000 {
		p, pass := randomProblem(r)
		if pass != flashkit.PassForward || !families[fwdSM90].fits(&Device{Major: 9}, p) || hasFeatures(&p) || p.Batch*p.Heads*p.QLen == 0 {
			continue
		}
		sms := 1 + r.IntN(150)
		want := planHopper(p, sms)
		q, fewer := packedHeads(p)
		if !fewer {
			require.Equal(t, want, planPart(p, p, sms), p)
		}
		want = planHopper(q, sms)
		x := p
		x.KVHeads, x.QLen = 1+r.IntN(p.KVHeads), min(p.QLen, 128*(1+r.IntN(4)))
		x.Heads = p.Heads / p.KVHeads * x.KVHeads
		h := planPart(x, p, sms)
		require.Equal(t, []any{want.splits, want.counters, want.rows.lowRows}, []any{h.splits, h.counters, h.rows.lowRows}, p)
		if rows := x.Batch * x.Heads * x.QLen; h.splits > 1 {
			cut++
			require.Equal(t, 2*rows*h.splits, h.partLSE, p)
			require.Equal(t, want.partO/(q.Batch*q.Heads*q.QLen)*rows, h.partO, p)
		}
		if want.cycles > 0 {
			require.EqualValues(t, ceilDiv(x.QLen, int(h.rows.lowRows)), h.rows.low, p)
		} else if banded(q) {
			require.EqualValues(t, ceilDiv(x.QLen, families[fwdSM90].shape(&p).rows), h.rows.tall, p)
		}
	}
	require.Positive(t, cut)
}

// A call knows whether it is a part of a whole; one beside other work deals out its tiles, and says the same.
func TestPartOptions(t *testing.T) {
	b, f := openFake(t)
	c := newDeviceCall(t, b, "b1-h4-g4-n900-m64-d64-bf16")
	defer c.close(t)
	c.fwdOptions.Kernel = "cuda/fwd_sm90"
	require.NoError(t, c.forward())
	want, sets := c.download(t, c.args.O), f.memsets.Load()
	c.fwdOptions.Beside, c.fwdOptions.PartOf = true, &c.p
	require.NoError(t, c.forward())
	require.Equal(t, want, c.download(t, c.args.O))
	require.Equal(t, sets+1, f.memsets.Load(), "a counter begins at 0")
	for _, name := range []string{"b1-h4-g4-n900-m64-d128-bf16", "b1-h4-g2-n900-m64-d64-bf16", "b1-h4-g4-n900-m64-d64-f16", "b1-h4-g4-n900-m64-d64-bf16-sink"} {
		p := problem(t, name)
		c.fwdOptions.PartOf = &p
		require.ErrorContains(t, c.forward(), "PartOf", name)
	}
	c.fwdOptions.PartOf = new(flashkit.Problem)
	require.Error(t, c.forward())
}

// A call of few blocks is one launch without workspace, or two launches.
func TestHopperLaunches(t *testing.T) {
	slow.UnderRace(t)
	b, f := openFake(t)
	f.idle = true
	for name, want := range map[string][]string{
		"b1-h16-g16-n512-m512-d128-bf16-causal":  {"fwd_sm90_bf16_d128"},
		"b1-h4-g2-n65-m4096-d64-f16-causal":      {"fwd_sm90_split_f16_d64", "decode_sm80_merge_f16_d64"},
		"b1-h2-g2-n66-m3000-d128-bf16-window9.9": {"fwd_sm90_bf16_d128"},

		"b1-h4-g4-n65-m4096-d80-dv8-bf16":    {"fwd_sm90_split_bf16_d80", "decode_sm80_merge_bf16_d128"},
		"b1-h4-g4-n65-m4096-d8-dv88-f16":     {"fwd_sm90_split_f16_d96", "decode_sm80_merge_f16_d128"},
		"b1-h4-g4-n65-m4096-d192-dv128-bf16": {"fwd_sm90_split_bf16_d192_dv128", "decode_sm80_merge_bf16_d128"},
		"b1-h4-g4-n65-m4096-d136-dv40-f16":   {"fwd_sm90_split_f16_d192_dv128", "decode_sm80_merge_f16_d128"}, // as wide as the parts are
		"b1-h4-g4-n65-m4096-d64-dv136-bf16":  {"fwd_sm90_split_bf16_d192", "decode_sm80_merge_bf16_d256"},
		"b1-h4-g4-n65-m4096-d200-dv8-bf16":   {"fwd_sm90_split_bf16_d256", "decode_sm80_merge_bf16_d256"},
	} {
		c := newDeviceCall(t, b, name)
		c.fwdOptions.Kernel, f.launches = "cuda/fwd_sm90", nil
		require.NoError(t, c.forward())
		require.Equal(t, want, f.names(), name)
		c.close(t)
	}
}

// fwd_sm90 has instances by what they know; slopes over a tiny unit, and a bfloat16 softcap too wide to do without a
// maximum, are for those that know more.
func TestHopperFeatureLaunches(t *testing.T) {
	b, f := openFake(t)
	for name, want := range map[string]string{
		"bf16-sink": "layout_bf16", "bf16-ragged": "layout_bf16", "bf16-softcap50": "softcap_bf16", "bf16-softcap51-sink": "softcap_bf16",
		"f16-softcap51": "softcap_f16", "bf16-alibi-sink": "alibi_bf16", "bf16-softcap30-alibi": "shaped_bf16", "f16-scale0.0000000000000000001-alibi": "f16",
		"bf16-bias": "bias_bf16", "bf16-mask-ragged": "mask_bf16", "f16-dropout0.1": "dropout_f16", "bf16-alibi-bias": "bf16",
	} {
		c := newDeviceCall(t, b, "b2-h2-g2-n10-m64-d40-"+name)
		if q := c.args.Seqs; q != nil {
			q.QLens, q.KVLens = []int32{10, 7}, []int32{50, 31}
		}
		c.fwdOptions.Kernel, f.launches = "cuda/fwd_sm90", nil
		require.NoError(t, c.forward())
		require.Equal(t, []string{"fwd_sm90_features_" + want + "_d64"}, f.names(), name)
		c.close(t)
	}
}

func (f *fakeDriver) names() (names []string) {
	for _, l := range f.launches {
		names = append(names, l.name)
	}
	return names
}

// inParts returns a problem like p that a family splits by keys or by heads of a group, if any.
func inParts(s *family, p flashkit.Problem) flashkit.Problem {
	switch {
	case s.rows > 0 || s.hopper && s.pass == flashkit.PassForward:
		p.KVLen = 2600
	case s.hopper:
		p.QLen, p.Heads = 150, 8
	}
	return p
}

// inPairs returns a problem like p whose key tiles are shared by pairs of blocks of bwd_sm90, if
// any.
func inPairs(p flashkit.Problem) flashkit.Problem {
	p.QLen, p.KVHeads = 1300, p.Heads
	return p
}

// inWaves returns a problem like p with more key tiles than multiprocessors, for which bwd_sm90 has
// separate blocks for dV.
func inWaves(p flashkit.Problem) flashkit.Problem {
	p.Batch, p.KVHeads = 24, p.Heads
	return p
}

// The problems of TestEveryInstance run every instance of parts.
func TestPartsOfEveryInstance(t *testing.T) {
	b, _ := openFake(t)
	for _, dim := range families[fwdSM90].dims {
		p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 25, KVLen: 300, Dim: dim.dim, VDim: dim.vDim, DType: flashkit.BFloat16}
		require.Greater(t, planHopper(inParts(&families[fwdSM90], p), b.dev.SMs).splits, 1, dim.name())
		require.Equal(t, traitParts, b.backwardInstance(inParts(&families[bwdSM90], p), inParts(&families[bwdSM90], p)), dim.name())
		want := instance(0)
		if dim.dim <= groupedDim {
			want = traitPairs
		}
		require.Equal(t, want, b.backwardInstance(inPairs(p), inPairs(p)), dim.name())
		waves := inWaves(p)
		want = map[int]instance{80: traitColumns80, 96: traitColumns96, wideDim: traitWide}[dim.dim]
		require.Equal(t, want, b.backwardInstance(waves, waves), dim.name())
	}
}

// The instance of bwd_sm90 depends on the whole of a part; persistent instances have no more blocks
// than multiprocessors.
func TestBackwardInstances(t *testing.T) {
	b, f := openFake(t)
	for name, want := range map[string]string{
		"b2-h4-g4-n300-m300-d64-f16":              "bwd_sm90_once_f16_d64",
		"b2-h4-g2-n300-m300-d64-f16":              "bwd_sm90_parts_f16_d64",
		"b2-h4-g2-n300-m300-d64-f16-causal":       "bwd_sm90_parts_f16_d64",
		"b9-h96-g48-n300-m130-d64-f16-causal":     "bwd_sm90_groups_f16_d64",
		"b9-h96-g48-n130-m130-d64-f16-causal":     "bwd_sm90_f16_d64",
		"b9-h96-g48-n130-m9000-d128-f16-causal":   "bwd_sm90_groups_f16_d128",
		"b9-h96-g48-n300-m300-d64-f16-window9.0":  "bwd_sm90_f16_d64",
		"b9-h96-g48-n130-m130-d64-f16":            "bwd_sm90_f16_d64",
		"b9-h96-g96-n130-m130-d64-bf16-causal":    "bwd_sm90_up_bf16_d64",
		"b9-h96-g96-n130-m190-d64-bf16-causal":    "bwd_sm90_bf16_d64",
		"b9-h96-g96-n130-m130-d64-bf16-window9.0": "bwd_sm90_bf16_d64",
		"b9-h96-g96-n130-m130-d128-bf16-causal":   "bwd_sm90_bf16_d128",
		"b9-h96-g96-n130-m130-d72-bf16":           "bwd_sm90_columns80_bf16_d128",
		"b9-h96-g96-n130-m130-d80-f16-causal":     "bwd_sm90_columns80_f16_d128",
		"b9-h96-g48-n130-m130-d96-f16":            "bwd_sm90_columns96_f16_d128",
		"b9-h96-g48-n130-m130-d96-f16-causal":     "bwd_sm90_groups_f16_d128",
		"b9-h96-g96-n130-m130-d80-dv104-f16":      "bwd_sm90_f16_d128",
		"b1-h2-g2-n30-m300-d256-bf16":             "bwd_sm90_bf16_d256",
		"b12-h2-g2-n30-m300-d256-bf16":            "bwd_sm90_wide_bf16_d256",
		"b9-h16-g16-n130-m130-d256-f16-causal":    "bwd_sm90_wide_f16_d256",
		"b1-h16-g16-n130-m130-d256-f16-causal":    "bwd_sm90_f16_d256",
		"b9-h16-g16-n2049-m130-d256-f16-causal":   "bwd_sm90_f16_d256",
		"b1-h2-g2-n300-m300-d256-bf16-causal":     "bwd_sm90_bf16_d256",
		"b1-h2-g2-n30-m300-d256-bf16-sink":        "",
	} {
		p := problem(t, name)
		main := b.backwardInstance(p, p)
		if want == "" {
			require.Equal(t, traitFeatures|traitLayout, main, name)
			continue
		}
		require.Equal(t, want, kernelKey{bwdSM90, main, p.DType, families[bwdSM90].pad(p)}.name(), name)
		if p.Batch == 9 {
			q := p
			q.QLen, q.KVLen = 128, 128
			require.Equal(t, main, b.backwardInstance(q, p), name)
		}
	}
	for name, want := range map[string]string{
		"b2-h4-g2-n300-m300-d64-f16-ragged":              "bwd_sm90_features_layout_f16_d64",
		"b2-h4-g2-n300-m300-d64-f16-causal-sink":         "bwd_sm90_features_groups_f16_d64",
		"b2-h4-g2-n300-m300-d256-f16-causal-ragged":      "bwd_sm90_features_layout_f16_d256",
		"b9-h96-g96-n130-m130-d64-bf16-causal-ragged":    "bwd_sm90_features_up_bf16_d64",
		"b2-h4-g4-n130-m130-d64-bf16-causal-ragged":      "bwd_sm90_features_layout_bf16_d64",
		"b9-h96-g96-n130-m130-d128-bf16-causal-ragged":   "bwd_sm90_features_layout_bf16_d128",
		"b9-h96-g96-n130-m130-d64-bf16-window9.0-ragged": "bwd_sm90_features_layout_bf16_d64",
		"b9-h96-g48-n130-m130-d128-bf16-window9.0-sink":  "bwd_sm90_features_groups_bf16_d128",
		"b9-h96-g96-n130-m5000-d64-bf16-causal-ragged":   "bwd_sm90_features_layout_bf16_d64",
		"b9-h96-g96-n2048-m5000-d64-bf16-causal-ragged":  "bwd_sm90_features_up_bf16_d64",
		"b9-h96-g96-n5000-m5000-d64-bf16-causal-ragged":  "bwd_sm90_features_layout_bf16_d64",
		"b9-h96-g96-n5000-m5000-d64-bf16-causal-sink":    "bwd_sm90_features_layout_bf16_d64",
	} {
		p := problem(t, name)
		require.Equal(t, want, kernelKey{bwdSM90, b.backwardInstance(p, p), p.DType, families[bwdSM90].pad(p)}.name(), name)
	}
	for _, name := range []string{"b2-h80-g80-n3-m3-d64-f16", "b2-h80-g80-n3-m3-d64-f16-sink"} {
		c := newDeviceCall(t, b, name)
		require.NoError(t, c.forward())
		c.bwdOptions.Kernel, c.bwdOptions.Spare, f.launches = "cuda/bwd_sm90", 7, nil
		require.NoError(t, c.backward())
		require.Equal(t, b.dev.SMs-7, f.launches[1].blocks, name)
		c.close(t)
	}
}
