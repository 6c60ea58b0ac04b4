//go:build !purego

package simd

import (
	"runtime"
	"testing"

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
