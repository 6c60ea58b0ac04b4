package wasm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// withWorkers returns a backend with the given number of instances.
func withWorkers(t *testing.T, e engine, workers int, limit uint64) *Backend {
	box, err := newSandbox(t.Context(), kernelWasm, e, workers, limit)
	require.NoError(t, err)
	b := &Backend{box: box}
	b.jobs.New = func() any { return new(job) }
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// The plan alone determines the tiles. So the bits depend neither on the number of workers, nor on
// the engine, nor on data that earlier calls left in memory.
func TestFeaturesSameBits(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	backends := []*Backend{
		withWorkers(t, compiler, 1, maxMemory), withWorkers(t, compiler, 2, maxMemory),
		withWorkers(t, compiler, 7, maxMemory), withWorkers(t, interpreter, 3, maxMemory),
	}
	calls := 12
	if testing.Short() {
		calls = 4
	}
	for n := range calls {
		for v, k := range backends[0].Kernels() {
			p := randomProblem(random, k.Takes&^flashkit.Feature(random.IntN(int(flashkit.AllFeatures)+1)))
			p.QLen, p.KVLen = 1+random.IntN(90), 1+random.IntN(400)
			p = within(&k, p)
			r := newTrial(seed+uint64(n), p, layout{n%2 == 0, true, n%3 == 0, true}, k.Pass == flashkit.PassBackward)
			r.prepare(k.Pass)
			r.sameBits(t, len(backends), func(i int) {
				require.NoError(t, backends[i].Kernels()[v].Compute(t.Context(), p, &r.a))
			}, func(i int) string {
				return fmt.Sprintf("seed %d, call %d, %s %s, backend %d", seed, n, p, k.Name, i)
			})
		}
	}
}

// A kernel refuses each feature that its pass does not support, and its error names the feature.
func TestFeaturesRefused(t *testing.T) {
	b := newBackend(t, compiler)
	random := rand.New(rand.NewPCG(1, 1))
	for _, k := range b.Kernels() {
		for f := flashkit.FeatureShift; f < flashkit.AllFeatures; f <<= 1 {
			p := problem(t, "b2-h2-g1-n7-m20-d4-f32")
			if ask(random, &p, f); p.Features() == 0 {
				p.Band = p.Band.Shift(1)
			}
			missing := (p.Features() &^ k.Takes).String()
			if missing == "" {
				require.Empty(t, k.Fits(p.Ask(k.Pass)))
				continue
			}
			require.Equal(t, "does not support "+missing, k.Fits(p.Ask(k.Pass)), k.Name)
		}
	}
}

// With one key, LSE equals the score, so LSE shows the error of the softcap.
func TestSoftcapAccuracy(t *testing.T) {
	b := newBackend(t, compiler)
	const n = 4000
	for _, c := range []float32{1, 30, 0x1p-126, 1e30, math.MaxFloat32} {
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: n, KVLen: 1, Dim: 1, VDim: 1, Scale: 1, Score: flashkit.Score{Softcap: c}}
		a := flashkit.NewArgs(p, flashkit.PassForward)
		for i := range n {
			x := c * float32(math.Exp(rand.Float64()*30-25))
			if math.IsInf(float64(x), 0) {
				x = c / 3
			}
			a.Q.Float32s()[i] = []float32{x, -x}[i%2]
		}
		a.Q.Float32s()[0], a.Q.Float32s()[1] = 0, math.MaxFloat32
		a.K.Float32s()[0] = 1
		k := b.Kernels()[2]
		require.Equal(t, "wasm/fwd_scalar", k.Name)
		require.NoError(t, k.Compute(t.Context(), p, a))
		for i, x := range a.Q.Float32s() {
			want, got := float64(c)*math.Tanh(float64(x)/float64(c)), float64(a.LSE.Float32s()[i])
			require.LessOrEqual(t, math.Abs(got-want), 6.1e-8*math.Abs(want)+0x1p-149, "%g capped at %g is %g, want %g", x, c, got, want)
		}
	}
}

// A call with features ends when its context is canceled, and does not change the results of
// later calls.
func TestFeaturesCanceled(t *testing.T) {
	b := withWorkers(t, compiler, 3, maxMemory)
	for _, k := range b.Kernels() {
		pass := k.Pass
		p := problem(t, "b2-h4-g2-n700-m900-d16-bf16")
		if k.Name == "wasm/decode_simd128" {
			p.QLen, p.KVLen, p.Dim, p.VDim = fewRows, 20000, 64, 64
		}
		ask(rand.New(rand.NewPCG(3, 3)), &p, k.Takes)
		long := flashkit.NewArgs(p, pass)
		if ends := long.Ranges.Int32s(); ends != nil {
			for i := 1; i < len(ends); i += 2 * p.Score.Ranges {
				ends[i] = int32(p.KVLen) // all keys
			}
		}
		if pass == flashkit.PassBackward {
			shared := flashkit.BF16(make([]uint16, p.KVLen), 1, 1, 1, p.KVLen)
			long.Bias, long.DBias = shared, flashkit.BF16(make([]uint16, p.KVLen), 1, 1, 1, p.KVLen)
		}
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2+5*i)*time.Millisecond)
			require.ErrorIs(t, k.Compute(ctx, p, long), context.DeadlineExceeded)
			cancel()
			small := within(&k, randomProblem(rand.New(rand.NewPCG(uint64(i), 4)), k.Takes))
			newTrial(uint64(i), small, layout{}, pass == flashkit.PassBackward).run(t, &k, fmt.Sprint("after a canceled call ", small))
		}
	}
}

// Fits includes the stage of bias and mask in the memory of a call, so a call that fits can run.
func TestFeaturesMemory(t *testing.T) {
	slow.UnderRace(t)
	for i := range variants {
		v, pass := &variants[i], variants[i].pass
		p := problem(t, "b1-h2-g2-n40-m1000-d64-f32-causal")
		if v.isDecode() {
			p.QLen = fewRows
		}
		plain := newPlan(v, p.Ask(pass))
		p.Score.Bias, p.Score.Mask = true, true
		busy := newPlan(v, p.Ask(pass))
		need := busy.memory()
		require.Greater(t, need, plain.memory())
		for _, limit := range []uint64{need - 1, need, 2 * need} {
			b := withWorkers(t, compiler, 2, limit)
			k := b.Kernels()[i]
			require.Equal(t, limit >= need, k.Fits(p.Ask(pass)) == "", "limit %d", limit)
			if limit < need {
				require.Contains(t, k.Fits(p.Ask(pass)), "one head requires")
				continue
			}
			require.NoError(t, k.Compute(t.Context(), p, flashkit.NewArgs(p, pass)))
			require.LessOrEqual(t, held(b), limit)
			require.LessOrEqual(t, k.Needs(p.Ask(pass)).Host, float64(limit)+1<<10)
		}
	}
}

// Empty outputs take no time, whatever the other dimensions are. Other outputs are written: gradients
// of sinks and biases without rows are 0.
func TestFeaturesNothingToDo(t *testing.T) {
	slow.UnderRace(t)
	b := newBackend(t, compiler)
	for _, k := range b.Kernels() {
		if k.Pass == flashkit.PassBackward {
			nothingToDo(t, &k)
		}
	}
}

func nothingToDo(t *testing.T, k *flashkit.Kernel) {
	for _, p := range []flashkit.Problem{
		{Batch: math.MaxInt>>23 + 1, Heads: 2, KVHeads: 1, Dim: 1, VDim: 1},
		{Batch: 3, Heads: 1 << 20, KVHeads: 1 << 20, Dim: 1, VDim: 1, KVLen: 0},
		{Batch: 2, Heads: 1 << 20, KVHeads: 1, Dim: 2, VDim: 1, KVLen: 300},
		{Batch: 0, Heads: 4, KVHeads: 2, QLen: 5, KVLen: 7, Dim: 3, VDim: 3},
	} {
		p.Score.Bias, p.Score.Sink = true, true
		empty := func(s [4]int) flashkit.Tensor { return flashkit.F32([]float32{}, s[0], s[1], s[2], s[3]) }
		keys := func(dim int) flashkit.Tensor {
			return flashkit.F32(make([]float32, p.Batch*p.KVHeads*p.KVLen*dim), p.Batch, p.KVHeads, p.KVLen, dim)
		}
		a := &flashkit.Args{Q: empty(p.QShape()), O: empty(p.OShape()), DO: empty(p.OShape()), DQ: empty(p.QShape()), LSE: empty(p.LSEShape())}
		a.K, a.V, a.DK, a.DV = keys(p.Dim), keys(p.VDim), keys(p.Dim), keys(p.VDim)
		a.Bias, a.DBias = flashkit.F32(make([]float32, p.KVLen), 1, 1, 1, p.KVLen), flashkit.F32(make([]float32, p.KVLen), 1, 1, 1, p.KVLen)
		a.Sink, a.DSink = flashkit.F32(make([]float32, p.Heads), 1, p.Heads, 1, 1), flashkit.F32(make([]float32, p.Heads), 1, p.Heads, 1, 1)
		for _, out := range []flashkit.Tensor{a.DK, a.DV, a.DBias, a.DSink} {
			for i := range out.Float32s() {
				out.Float32s()[i] = float32(math.NaN())
			}
		}
		require.NoError(t, k.Compute(t.Context(), p, a), "%s", p)
		for _, out := range []flashkit.Tensor{a.DK, a.DV, a.DBias, a.DSink} {
			for i, v := range out.Float32s() {
				require.Zero(t, v, "%s: element %d", p, i)
			}
		}
	}
}
