package simd

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// allocated returns the number of bytes that a call of the named kernel allocates on a new backend.
func allocated(t *testing.T, name string, p flashkit.Problem) float64 {
	b := New()
	defer b.Close()
	q, k, v := zeros(p, p.QShape()), zeros(p, p.KShape()), zeros(p, p.VShape())
	o, do := zeros(p, p.OShape()), zeros(p, p.OShape())
	dq, dk, dv := zeros(p, p.QShape()), zeros(p, p.KShape()), zeros(p, p.VShape())
	lse := flashkit.F32(make([]float32, p.Batch*p.Heads*p.QLen), p.Batch, p.Heads, p.QLen, 1)
	fwd := &flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse}
	bwd := &flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse, DO: do, DQ: dq, DK: dk, DV: dv}
	for _, k := range b.Kernels() {
		if k.Name != name {
			continue
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := error(nil)
		if k.Pass == flashkit.PassForward {
			err = k.Compute(t.Context(), p, fwd)
		} else {
			err = k.Compute(t.Context(), p, bwd)
		}
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		return float64(after.TotalAlloc - before.TotalAlloc)
	}
	t.Fatal(name)
	return 0
}

func zeros(p flashkit.Problem, s [4]int) flashkit.Tensor {
	return flashkit.Zeros(p.DType, s[0], s[1], s[2], s[3])
}

// Needs predicts the bytes that a first call allocates. The difference is due to the allocator's
// size classes and small allocations.
func TestHostMemory(t *testing.T) {
	slow.UnderRace(t)
	for _, name := range []string{
		"b1-h1-g1-n1-m1-d8-f32",
		"b1-h8-g2-n300-m300-d64-f32-causal",
		"b2-h4-g4-n200-m500-d33-dv40-f16",
		"b1-h4-g4-n256-m256-d64-bf16-causal",
		"b1-h8-g1-n1-m4096-d128-bf16",
		"b1-h2-g2-n2000-m10-d16-bf16",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		for _, k := range New().Kernels() {
			if k.Fits(p.Ask(k.Pass)) != "" {
				continue
			}
			got, want := allocated(t, k.Name, p), k.Needs(p.Ask(k.Pass)).Host
			require.GreaterOrEqual(t, got, want, "%s %s", k.Name, p)
			require.LessOrEqual(t, got, 1.25*want+16<<10, "%s %s", k.Name, p)
		}
	}
}

// The prediction also holds with features, for sequences of the problem's lengths, and for packed
// sequences, whose tables need memory.
func TestHostMemoryOfFeatures(t *testing.T) {
	slow.UnderRace(t)
	for _, name := range []string{
		"b1-h8-g2-n300-m300-d64-f32-causal-softcap30-alibi",
		"b2-h4-g4-n200-m500-d33-dv40-f16-bias-mask-sink-dropout0.5",
		"b3000-h1-g1-n5-m6-d4-f32-ragged", "b20-h1-g1-n70-m80-d4-f32-bias-ragged",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		for i := range New().Kernels() {
			b := New()
			k := b.Kernels()[i]
			if k.Fits(p.Ask(k.Pass)) != "" {
				continue
			}
			args := flashkit.NewArgs(p, k.Pass)
			if p.Ragged {
				one := p
				one.Batch, one.QLen, one.KVLen = 1, p.Batch*p.QLen, p.Batch*p.KVLen
				args = flashkit.NewArgs(one, k.Pass)
				bias := args.Bias.Shape()
				args.Seqs.QStarts, args.Seqs.KVStarts = []int32{0}, []int32{0}
				for b := 1; b <= p.Batch; b++ {
					args.Seqs.QStarts, args.Seqs.KVStarts = append(args.Seqs.QStarts, int32(b*p.QLen)), append(args.Seqs.KVStarts, int32(b*p.KVLen))
				}
				if bias[3] > 0 {
					args.Bias = flashkit.F32(make([]float32, p.KVLen), 1, 1, 1, p.KVLen)
					if k.Pass == flashkit.PassBackward {
						args.DBias = flashkit.F32(make([]float32, p.KVLen), 1, 1, 1, p.KVLen)
					}
				}
			}
			var c flashkit.Call
			require.NoError(t, c.Set(p, k.Pass, args))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, k.Do(t.Context(), &c))
			runtime.ReadMemStats(&after)
			got, want := float64(after.TotalAlloc-before.TotalAlloc), k.Needs(&c).Host
			require.GreaterOrEqual(t, got, want, "%s %s", k.Name, p)
			require.LessOrEqual(t, got, 1.25*want+16<<10, "%s %s", k.Name, p)
			require.NoError(t, b.Close())
		}
	}
}

// The prediction is positive even for a problem that is too large for any machine.
func TestHostMemoryOfHugeProblems(t *testing.T) {
	p, err := flashkit.ParseProblem("b1-h1-g1-n1000000000000000-m1000-d1-bf16")
	require.NoError(t, err)
	for _, k := range New().Kernels() {
		if k.Needs == nil {
			continue // a build tag left out the kernel
		}
		require.Positive(t, k.Needs(p.Ask(k.Pass)).Host, k.Name)
	}
}
