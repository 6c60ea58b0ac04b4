//go:build !purego

package simd

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// lastItems runs a kernel and returns the items of its last phase, and the workers that the
// call had.
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
		return int(j.items), j.workers
	}
	return -1, 0
}

// timedPhases returns what every kernel predicts of a call with so many workers, 0 for as many
// as it may have.
func timedPhases(p flashkit.Problem, workers int) map[string][]timedPhase {
	f, b := p.Ask(flashkit.PassForward), p.Ask(flashkit.PassBackward)
	f.Workers, b.Workers = workers, workers
	f512, b512, d512 := avx512Lanes.fwdTimes(f), avx512Lanes.bwdTimes(b), avx512Decode.times(f)
	f2, b2, d2 := avx2Lanes.fwdTimes(f), avx2Lanes.bwdTimes(b), avx2Decode.times(f)
	pairs, tiles, planes := bwdAVX512BF16Times(b), bwdAMXBF16Times(b), bwdAMXF32Times(b)
	rows := decodeAMXBF16Times(f)
	return map[string][]timedPhase{
		"simd/fwd_generic": {fwdGenericTimes(f)}, "simd/bwd_generic": {bwdGenericTimes(b)},
		"simd/fwd_avx2": {f2}, "simd/bwd_avx2": b2[:], "simd/decode_avx2": d2[:],
		"simd/fwd_avx512": {f512}, "simd/bwd_avx512": b512[:], "simd/decode_avx512": d512[:],
		"simd/fwd_avx512bf16": {fwdAVX512BF16Times(f)}, "simd/bwd_avx512bf16": pairs[:],
		"simd/fwd_amxbf16": {fwdAMXBF16Times(f)}, "simd/bwd_amxbf16": tiles[:], "simd/decode_amxbf16": rows[:],
		"simd/fwd_amxf32": {fwdAMXF32Times(f)}, "simd/bwd_amxf32": planes[:],
	}
}

func TestCostOfPlan(t *testing.T) {
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
					continue // it does not fit the problem, or the machine
				}
				phases := timedPhases(p, had)[kernel]
				last := phases[len(phases)-1].items
				if last == 0 { // a backward pass that has no last phase
					last = phases[len(phases)-2].items
				}
				assert.Equal(t, ran, last, "%s of %s with %d workers", kernel, name, workers)
			}
		}
	}
}

func TestCostOfBackwardPlan(t *testing.T) {
	for _, name := range []string{"b1-h2-g1-n9-m900-d64-bf16-causal", "b2-h8-g2-n700-m300-d160-bf16"} {
		p := parsed(t, name)
		for kernel, plan := range map[string]func(*plan) (tile, block phase){
			"simd/bwd_avx2": avx2Lanes.bwdPlan, "simd/bwd_avx512": avx512Lanes.bwdPlan,
			"simd/bwd_avx512bf16": bwdAVX512BF16Plan, "simd/bwd_amxbf16": bwdAMXBF16Plan, "simd/bwd_amxf32": bwdAMXF32Plan,
		} {
			tile, block := plan(newPlan(p.Ask(flashkit.PassBackward)))
			f := timedPhases(p, 0)[kernel]
			assert.Equal(t, []int{tile.items, block.items}, []int{f[0].items, f[1].items}, "%s of %s", kernel, name)
		}
	}
}
