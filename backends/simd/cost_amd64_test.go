//go:build !purego

package simd

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// lastItems runs a kernel. It returns the number of items of the last phase, and the number of
// workers of the call.
func lastItems(t *testing.T, name string, p flashkit.Problem) (items, workers int) {
	b := New()
	defer b.Close()
	tensors := [8]flashkit.Tensor{}
	for i, s := range [8][4]int{p.QShape(), p.KShape(), p.VShape(), p.OShape(), p.QShape(), p.KShape(), p.VShape(), p.OShape()} {
		tensors[i] = zeros(p, s)
	}
	lse := flashkit.F32(make([]float32, p.Batch*p.Heads*p.QLen), p.Batch, p.Heads, p.QLen, 1)
	for _, k := range b.Kernels() {
		if k.Name != name || k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		if k.Pass == flashkit.PassForward {
			require.NoError(t, k.Compute(t.Context(), p, &flashkit.Args{Q: tensors[0], K: tensors[1], V: tensors[2], O: tensors[3], LSE: lse}))
		} else {
			require.NoError(t, k.Compute(t.Context(), p, &flashkit.Args{Q: tensors[0], K: tensors[1], V: tensors[2], O: tensors[3], LSE: lse,
				DQ: tensors[4], DK: tensors[5], DV: tensors[6], DO: tensors[7]}))
		}
		j := b.last.Load()
		return j.Items, j.workers
	}
	return -1, 0
}

// timedPhases returns every kernel's predictions for a call with the given number of workers. If
// the number is 0, there is no limit.
func timedPhases(p flashkit.Problem, workers int) map[string][]timedPhase {
	f, b := p.Ask(flashkit.PassForward), p.Ask(flashkit.PassBackward)
	f.Workers, b.Workers = workers, workers
	of := func(c *flashkit.Call, make func(*plan), times func(*plan) [3]timedPhase) []timedPhase {
		all := times(planned(c, make))
		n := 3
		for n > 1 && all[n-1].items == 0 {
			n--
		}
		return all[:n]
	}
	return map[string][]timedPhase{
		"simd/fwd_generic": of(f, planFwdGeneric, fwdGenericTimes), "simd/bwd_generic": of(b, planBwdGeneric, bwdGenericTimes),
		"simd/fwd_avx2": of(f, avx2Lanes.planForward, avx2Lanes.fwdTimes), "simd/bwd_avx2": of(b, avx2Lanes.planBackward, avx2Lanes.bwdTimes),
		"simd/fwd_avx512": of(f, avx512Lanes.planForward, avx512Lanes.fwdTimes), "simd/bwd_avx512": of(b, avx512Lanes.planBackward, avx512Lanes.bwdTimes),
		"simd/bwd_fewkeys_avx2": of(b, avx2Lanes.planFewKeys, avx2Lanes.fewKeysTimes), "simd/bwd_fewkeys_avx512": of(b, avx512Lanes.planFewKeys, avx512Lanes.fewKeysTimes),
		"simd/decode_avx2": of(f, planDecodeLanes, avx2Decode.times), "simd/decode_avx512": of(f, planDecodeLanes, avx512Decode.times),
		"simd/fwd_avx512bf16": of(f, fwdAVX512BF16Plan, fwdAVX512BF16Times), "simd/bwd_avx512bf16": of(b, bwdAVX512BF16Plan, bwdAVX512BF16Times),
		"simd/fwd_amxbf16": of(f, fwdAMXBF16Plan, fwdAMXBF16Times), "simd/bwd_amxbf16": of(b, bwdAMXBF16Plan, bwdAMXBF16Times),
		"simd/fwd_amxf32": of(f, fwdAMXF32Plan, fwdAMXF32Times), "simd/bwd_amxf32": of(b, bwdAMXF32Plan, bwdAMXF32Times),
		"simd/decode_amxbf16": of(f, decodeAMXBF16Plan, decodeAMXBF16Times),
	}
}

func TestCostOfPlan(t *testing.T) {
	slow.UnderRace(t)
	defer setProcs(runtime.GOMAXPROCS(0))
	for _, workers := range []int{1, 16} {
		setProcs(workers)
		for _, name := range []string{
			"b1-h2-g1-n1-m57-d64-f32", "b1-h2-g1-n9-m900-d64-bf16-causal",
			"b2-h3-g3-n300-m300-d160-f16", "b1-h1-g1-n70-m1200-d33-f32-window100.3",
		} {
			p := parsed(t, name)
			for kernel := range timedPhases(p, 0) {
				ran, had := lastItems(t, kernel, p) // a small call has one worker
				if ran < 0 {
					continue // the kernel does not support the problem or the machine
				}
				phases := timedPhases(p, had)[kernel]
				last := phases[len(phases)-1].items
				assert.Equal(t, ran, last, "%s of %s with %d workers", kernel, name, workers)
			}
		}
	}
}

func TestCostOfBackwardPlan(t *testing.T) {
	for _, name := range []string{"b1-h2-g1-n9-m900-d64-bf16-causal", "b2-h8-g2-n700-m300-d160-bf16"} {
		p := parsed(t, name)
		for kernel, plan := range map[string]func(*plan){
			"simd/bwd_avx2": avx2Lanes.planBackward, "simd/bwd_avx512": avx512Lanes.planBackward,
			"simd/bwd_avx512bf16": bwdAVX512BF16Plan, "simd/bwd_amxbf16": bwdAMXBF16Plan, "simd/bwd_amxf32": bwdAMXF32Plan,
		} {
			pl := planned(p.Ask(flashkit.PassBackward), plan)
			f := timedPhases(p, 0)[kernel]
			assert.Equal(t, []int{pl.work[0].Items, pl.work[1].Items}, []int{f[0].items, f[1].items}, "%s of %s", kernel, name)
		}
	}
}

type measuredOrder struct {
	problem, fast, slow string
	ratio               float64
}

// assertOrders checks predictions for a processor with the given rates. In each row, the kernel fast took less
// time than the kernel slow: slow's time on one core was ratio times fast's.
func assertOrders(t *testing.T, wide, pairs float64, rows []measuredOrder) {
	defer func(w, p func() float64) { wideRate, pairRate = w, p }(wideRate, pairRate)
	wideRate, pairRate = func() float64 { return wide }, func() float64 { return pairs }
	b := New()
	defer b.Close()
	kernels := map[string]flashkit.Kernel{}
	for _, k := range b.Kernels() {
		kernels[k.Name] = k
	}
	for _, x := range rows {
		cost := func(name string) time.Duration {
			k := kernels["simd/"+name]
			c := parsed(t, x.problem).Ask(k.Pass)
			c.Workers = 1
			return k.Cost(c)
		}
		assert.Less(t, cost(x.fast), cost(x.slow), "%s: %s took %v times as long as %s", x.problem, x.slow, x.ratio, x.fast)
	}
}

// Few query rows, many keys and windows, measured on a Zen 3 (AVX2) and on a Xeon (AVX-512). Dispatch chooses
// backward kernels by the sum with the forward kernel.
func TestCostOrdersMeasuredKernels(t *testing.T) {
	assertOrders(t, 2, 1, []measuredOrder{
		{"b25-h64-g8-n8-m965-d128-bf16-window14.128", "bwd_decode_avx2", "bwd_avx2", 1.87},
		{"b1-h8-g4-n4-m116-d64-f16-window2.0", "bwd_decode_avx2", "bwd_avx2", 3.61},
		{"b1-h128-g16-n4-m504-d64-f16-window4.0", "bwd_decode_avx2", "bwd_avx2", 2.44},
		{"b1-h2-g2-n8-m3315-d32-f16", "bwd_decode_avx2", "bwd_avx2", 1.38},
		{"b1-h4-g4-n8-m2698-d256-f16", "bwd_decode_avx2", "bwd_avx2", 1.32},
		{"b1-h3-g3-n8-m564-d128-bf16-causal", "bwd_decode_avx2", "bwd_avx2", 1.3},
		{"b13-h1-g1-n35-m35-d72-bf16-window307.0", "bwd_avx2", "bwd_decode_avx2", 1.45},
		{"b1-h4-g2-n16-m984-d256-f32", "fwd_avx2", "decode_avx2", 1.2},
		{"b1-h12-g3-n4-m1475-d72-bf16", "fwd_avx2", "decode_avx2", 1.36},
		{"b1-h8-g4-n16-m4526-d96-f32-window500.128", "fwd_avx2", "decode_avx2", 1.87},
		{"b1-h2-g2-n18-m427-d80-bf16-window4.0", "fwd_avx2", "decode_avx2", 1.44},
		{"b8-h6-g3-n16-m88-d128-f32-causal-alibi-sink", "fwd_avx2", "decode_avx2", 1.57},
		{"b25-h12-g12-n5-m93-d96-bf16-window198.0", "decode_avx2", "fwd_avx2", 1.45},
		{"b43-h5-g1-n4-m1348-d32-f32", "bwd_decode_avx512", "bwd_avx512", 1.78},
		{"b22-h2-g2-n8-m2804-d32-f32", "bwd_decode_avx512", "bwd_avx512", 1.6},
		{"b8-h1-g1-n12-m83-d128-bf16-window2.0", "bwd_decode_avx512", "bwd_fewkeys_avx512", 2.1},
		{"b1-h8-g8-n2-m923-d160-bf16-causal", "bwd_decode_avx512", "bwd_amxbf16", 1.76},
		{"b64-h12-g12-n9-m9-d32-f32", "bwd_decode_avx512", "bwd_fewkeys_avx512", 1.28},
		{"b14-h12-g12-n18-m18-d64-f32", "bwd_decode_avx512", "bwd_fewkeys_avx512", 1.31},
		{"b11-h2-g2-n16-m983-d64-f16-window88.0", "fwd_avx512", "decode_avx512", 1.88},
		{"b1-h8-g8-n16-m460-d80-f32-window3.128", "fwd_avx2", "decode_avx512", 1.46},
	})
}

// A Zen 4, whose products of 512 bits take as long as two of 256 bits.
func TestCostOrdersMeasuredKernelsNarrow(t *testing.T) {
	assertOrders(t, 1, 2, []measuredOrder{
		{"b1-h8-g8-n16-m1659-d64-f32", "fwd_avx2", "fwd_avx512", 1.76},
		{"b1-h16-g2-n16-m1114-d40-f32-bias", "fwd_avx2", "fwd_avx512", 1.78},
		{"b1-h128-g16-n16-m2547-d96-f32-softcap30-alibi", "fwd_avx2", "fwd_avx512", 1.68},
		{"b1-h64-g16-n7-m7-d96-f32-alibi-sink", "fwd_avx2", "decode_avx512", 1.62},
		{"b8-h16-g16-n90-m90-d64-bf16-mask", "fwd_avx512bf16", "fwd_avx512", 1.52},
		{"b4-h1-g1-n8-m2417-d64-f32", "decode_avx512", "decode_avx2", 1.46},
		{"b1-h16-g2-n63-m280-d128-bf16-causal", "bwd_avx512bf16", "bwd_avx512", 1.44},
		{"b1-h12-g6-n30-m2-d80-bf16-causal", "bwd_fewkeys_avx2", "bwd_decode_avx512", 1.74},
		{"b15-h12-g12-n3-m2-d128-bf16-causal-alibi-sink", "bwd_avx2", "bwd_generic", 1.66},
		{"b34-h48-g12-n1-m3-d128-bf16-bias-mask", "bwd_avx2", "bwd_generic", 1.43},
	})
}

// A Zen 5, whose instruction multiplies a vector of bf16 pairs in the time of a vector of float32.
func TestCostOrdersMeasuredKernelsOfPairs(t *testing.T) {
	assertOrders(t, 2, 2, []measuredOrder{
		{"b4-h8-g8-n64-m64-d64-bf16", "fwd_avx512bf16", "fwd_avx512", 1.61},
		{"b2-h8-g8-n128-m128-d64-bf16", "fwd_avx512bf16", "fwd_avx512", 1.71},
		{"b1-h8-g8-n64-m1024-d64-bf16", "fwd_avx512bf16", "fwd_avx512", 1.83},
		{"b1-h64-g16-n174-m174-d72-bf16", "bwd_avx512bf16", "bwd_avx512", 1.29},
		{"b1-h4-g4-n512-m512-d64-bf16", "bwd_avx512bf16", "bwd_avx512", 1.59},
		{"b1-h8-g8-n64-m1024-d64-bf16", "bwd_avx512bf16", "bwd_avx512", 1.31},
		{"b14-h12-g3-n4-m2771-d32-f16-window2.0", "decode_avx512", "fwd_avx512", 1.6},
		{"b1-h24-g12-n6-m1777-d128-f16-window2.16", "decode_avx512", "fwd_avx512", 1.34},
		{"b14-h12-g3-n4-m6-d32-f16", "fwd_avx512", "decode_avx512", 2.6},
		{"b17-h48-g6-n8-m743-d64-f32", "bwd_decode_avx512", "bwd_avx512", 1.4},
		{"b4-h48-g6-n8-m743-d128-f32", "bwd_decode_avx512", "bwd_avx512", 1.37},
		{"b4-h48-g6-n8-m128-d64-f32", "bwd_decode_avx512", "bwd_avx512", 1.23},
	})
}
