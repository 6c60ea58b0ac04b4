package cuda

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/hostmem"
	"github.com/flashkit-go/flashkit/internal/slow"
)

const featureProblems = `
	b2-h4-g2-n33-m70-d24-dv40-f32-causal-softcap5-alibi-bias-mask-sink-dropout0.25
	b3-h2-g1-n9-m21-d16-f32-window5.3-shift2-alibi-sink-ragged
	b3-h2-g1-n9-m21-d16-f32-softcap2-ragged-page4
	b2-h2-g1-n9-m21-d16-f32-sink-carry
	b2-h2-g1-n9-m21-d16-f32-kvf16-mask`

// Tensors on the device and on the host give the same results with features, including lengths and
// tables.
func TestDeviceMemoryFeatures(t *testing.T) {
	b, _ := openFake(t)
	for _, name := range strings.Fields(featureProblems) {
		c := newDeviceCall(t, b, name)
		if seqs := c.args.Seqs; seqs != nil {
			if seqs.KVLens == nil {
				seqs.KVLens = []int32{21, 0, 17}
			}
			seqs.QLens = []int32{9, 5, 0}
			for i := range seqs.KVLens {
				seqs.KVLens[i] -= int32(i)
				seqs.KVLens[i] = max(0, seqs.KVLens[i])
			}
		}
		c.args.Seed = 42
		host := c.args
		for _, a := range allArguments {
			if x := a.Of(&c.args); !x.IsZero() {
				*a.Of(&host) = c.toHost(t, *x)
			}
		}
		passes := []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward}
		if c.p.Features()&flashkit.ForwardFeatures != 0 {
			passes = passes[:1]
		}
		for _, pass := range passes {
			require.NoError(t, c.launch(pass, Options{}), name)
			for _, k := range b.Kernels() {
				if strings.HasSuffix(k.Name, "_f32") && k.Pass == pass {
					require.NoError(t, k.Compute(t.Context(), c.p, &host), name)
				}
			}
			for _, a := range allArguments {
				if x := a.Of(&c.args); a.Role(&c.p, pass)&flashkit.Output != 0 && !x.IsZero() {
					require.Equal(t, hostmem.Bytes(a.Of(&host)), hostmem.Bytes(ptr(c.toHost(t, *x))), "%s of %s", a.Name, name)
				}
			}
		}
		c.close(t)
	}
}

func ptr[T any](x T) *T { return &x }

// toHost returns a copy of a tensor on the host.
func (c *deviceCall) toHost(t *testing.T, x flashkit.Tensor) flashkit.Tensor {
	s := x.Shape()
	h := flashkit.Zeros(x.DType(), s[0], s[1], s[2], s[3])
	require.NoError(t, DownloadTensor(c.s, h, buffer(x)))
	return h
}

// Calls with features on device tensors do not allocate either.
func TestDeviceAllocationsFeatures(t *testing.T) {
	if slow.Race {
		t.Skip("the race detector makes pools forget what they hold")
	}
	b, _ := openFake(t)
	c := newDeviceCall(t, b, "b2-h2-g1-n8-m8-d8-f32-softcap3-bias-sink-dropout0.1-ragged")
	defer c.close(t)
	c.args.Seqs.KVLens = []int32{8, 3}
	require.NoError(t, c.forward())
	require.NoError(t, c.backward())
	b.drv.LaunchKernel = func(Function, int, int, int, StreamHandle, unsafe.Pointer) error { return nil }
	b.drv.MemAllocAsync = func(int, StreamHandle) (Pointer, error) { return fakeAddress, nil }
	free := b.drv.MemFreeAsync
	defer func() { b.drv.MemFreeAsync = free }() // for the cache of the stream
	b.drv.MemFreeAsync = func(Pointer, StreamHandle) error { return nil }
	b.drv.MemcpyHtoDAsync = func(Pointer, unsafe.Pointer, int, StreamHandle) error { return nil }
	require.Zero(t, allocs.PerRun(100, func() {
		if c.forward() != nil || c.backward() != nil {
			t.Error("failed")
		}
	}))
}

func TestDivisor(t *testing.T) {
	for range 200000 {
		d, j := uint32(1)+rand.Uint32N(1<<rand.IntN(31)), rand.Uint32()>>(1+rand.IntN(31))
		factor, shift := divisor(d)
		require.Equal(t, j/d, uint32(uint64(j)*uint64(factor)>>shift), "%d / %d", j, d)
	}
}

// A plain call uses plain instances, a call with features the instances for them, after a call of
// either kind.
func TestFeatureLaunches(t *testing.T) {
	b, f := openFake(t)
	for range 2 {
		for _, x := range []struct {
			problem string
			want    []string
		}{
			{"b2-h2-g2-n10-m50-d40-f32-shift1", []string{"fwd_f32_d64", "bwd_f32_delta", "bwd_f32_d64"}},
			{"b2-h2-g2-n10-m50-d40-f32-alibi", []string{"fwd_f32_features_d64", "bwd_f32_features_delta", "bwd_f32_features_d64"}},
			{"b2-h2-g2-n10-m50-d40-f32-bias-sink", []string{"fwd_f32_features_d64", "bwd_f32_features_delta", "bwd_f32_features_d64", "sums_dsink", "sums_dbias_f32"}},
		} {
			c := newDeviceCall(t, b, x.problem)
			c.fwdOptions.Kernel = "cuda/fwd_f32"
			f.launches = nil
			require.NoError(t, c.forward())
			require.NoError(t, c.backward())
			var got []string
			for _, l := range f.launches {
				got = append(got, l.name)
			}
			require.Equal(t, x.want, got, x.problem)
			c.close(t)
		}
	}
}

// bwd_sm90 has instances for sets of features, and writes DBias if it is no sum.
func TestHopperBackwardLaunches(t *testing.T) {
	b, f := openFake(t)
	ends := [2]string{"bwd_sm90_features_delta_bf16", "bwd_sm90_features_finish_bf16"}
	for _, x := range []struct {
		form, main string
		sums       []string
	}{
		{"-ragged", "bwd_sm90_features_layout_bf16_d64", nil},
		{"-sink", "bwd_sm90_features_layout_bf16_d64", nil},
		{"-softcap5-alibi", "bwd_sm90_features_bf16_d64", nil},
		{"-mask-dropout0.1", "bwd_sm90_features_bf16_d64", nil},
		{"-bias", "bwd_sm90_features_bias_bf16_d64", nil},
		{"-alibi-sink", "bwd_sm90_features_alibi_bf16_d64", nil},
		{"-dropout0.1", "bwd_sm90_features_dropout_bf16_d64", nil},
		{"-softcap5-bias", "bwd_sm90_features_bf16_d64", []string{"sums_dbias_bf16"}},
	} {
		c := newDeviceCall(t, b, "b2-h2-g2-n10-m50-d40-bf16"+x.form)
		if q := c.args.Seqs; q != nil {
			q.QLens, q.KVLens = []int32{10, 7}, []int32{50, 31}
		}
		c.bwdOptions.Kernel = "cuda/bwd_sm90"
		c.args.DSink = flashkit.Tensor{}
		require.NoError(t, c.forward())
		f.launches = nil
		require.NoError(t, c.backward())
		var got []string
		for _, l := range f.launches {
			got = append(got, l.name)
		}
		require.Equal(t, append([]string{ends[0], x.main, ends[1]}, x.sums...), got, x.form)
		c.close(t)
	}
}

// The cost of sequences follows their lengths, by the traits only.
func TestCostOfSequences(t *testing.T) {
	b, _ := openFake(t)
	for i := range families {
		s := &families[i]
		if s.takes&flashkit.FeatureRagged == 0 {
			continue
		}
		p := problem(t, "b64-h16-g16-n1-m4096-d64-f32-ragged")
		if p.DType = s.dtypes[len(s.dtypes)-1]; s.rows == 0 {
			p.QLen = 4096
		}
		full := p.Ask(s.pass)
		short := p.Ask(s.pass)
		short.Traits.Load = 8 // a quarter of the pairs
		require.Less(t, s.callCost(&b.dev, short), s.callCost(&b.dev, full)/2, s.name)
	}
}

// Ranges and row maxima do not combine with features of scores or weights. Refusals name these.
func TestRangedRefusals(t *testing.T) {
	hopper := &Device{Name: "GPU", Major: 9}
	for _, x := range []struct {
		id            familyID
		problem, want string
	}{
		{fwdSM90, "b1-h2-g1-n9-m21-d64-bf16-causal-ranges2-sink-ragged-page16-carry-rowmax", ""},
		{fwdSM90, "b1-h2-g1-n9-m21-d64-bf16-bias-mask-ranges1", "does not support bias,mask with ranges"},
		{fwdSM90, "b1-h2-g1-n9-m21-d64-bf16-softcap5-ranges1-rowmax", "does not support softcap with ranges,rowmax"},
		{fwdSM90, "b1-h2-g1-n9-m21-d64-bf16-dropout0.25-rowmax", "does not support dropout with rowmax"},
		{fwdSM90, "b1-h2-g1-n9-m21-d64-bf16-keymass", "does not support keymass"},
		{fwdSM80, "b1-h2-g1-n9-m21-d64-bf16-ranges1", "does not support ranges"},
		{bwdSM90, "b1-h2-g1-n131072-m21-d64-bf16-window5.5-ranges2-sink-ragged", ""},
		{bwdSM90, "b1-h2-g1-n131073-m21-d64-bf16-ranges2", "supports sequence lengths up to 131072, not 131073"},
		{bwdSM90, "b1-h2-g1-n9-m21-d64-bf16-alibi-ranges1", "does not support alibi with ranges"},
	} {
		s := &families[x.id]
		require.Equal(t, x.want, s.reason(hopper, &flashkit.Call{Problem: problem(t, x.problem), Pass: s.pass}), x.problem)
	}
}
