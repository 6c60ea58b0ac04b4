package simd_test

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// outputsOf are the tensors that a pass writes.
func outputsOf(s *sample, pass flashkit.Pass) (list []*flashkit.Tensor) {
	for _, a := range flashkit.Arguments() {
		if a.Role(&s.p, pass)&flashkit.Output != 0 && !a.Of(&s.args).IsZero() {
			list = append(list, a.Of(&s.args))
		}
	}
	return list
}

// memoryOf returns the bits of all their memory.
func memoryOf(list []*flashkit.Tensor) (bits []uint32) {
	for _, t := range list {
		for _, x := range t.Float32s() {
			bits = append(bits, math.Float32bits(x))
		}
		for _, x := range t.Uint16s() {
			bits = append(bits, uint32(x))
		}
	}
	return bits
}

// backwardFeatures are what both passes take.
const backwardFeatures = flashkit.AllFeatures &^ (flashkit.FeaturePage | flashkit.FeatureCarry)

func TestFeaturesGiveTheSameBitsForAnyNumberOfWorkers(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 8 {
		s := newSample(r, drawProblem(t, r, backwardFeatures, dtypes[r.IntN(3)]))
		for _, name := range []string{"simd/fwd_generic", "simd/bwd_generic"} {
			k := kernel(t, name)
			var want []uint32
			for _, procs := range []int{1, 2, 7, 7} {
				withProcs(t, procs)
				for _, x := range outputsOf(s, k.Pass) {
					fill(x, math.NaN())
				}
				require.NoError(t, k.Compute(t.Context(), s.p, &s.args), s.about)
				got := memoryOf(outputsOf(s, k.Pass))
				if want == nil {
					want = got
				}
				require.Equal(t, want, got, "%s with %d workers: %s", name, procs, s.about)
			}
		}
	}
}

func TestFeaturesAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector sync.Pool drops objects at random")
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	forward := flashkit.AllFeatures
	for i := range 6 {
		features := backwardFeatures
		if i%2 == 0 {
			features = forward
		}
		s := newSample(r, drawProblem(t, r, features, dtypes[i%3]))
		for _, k := range simd.New().Kernels() {
			if !strings.HasSuffix(k.Name, "_generic") || s.p.Carry && k.Pass == flashkit.PassBackward {
				continue
			}
			run := func() { require.NoError(t, k.Compute(t.Context(), s.p, &s.args)) }
			run()
			require.Zero(t, testing.AllocsPerRun(20, run), "%s: %s", k.Name, s.about)
			var c flashkit.Call
			require.NoError(t, c.Set(s.p, k.Pass, &s.args))
			require.Zero(t, testing.AllocsPerRun(20, func() { k.Cost(&c); k.Needs(&c) }), "%s: %s", k.Name, s.about)
		}
	}
}

// longSample is a call of many pairs, which is canceled long before its end.
func longSample(pass flashkit.Pass, packed bool) (flashkit.Problem, *flashkit.Args) {
	p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: 8192, KVLen: 8192, Dim: 32, VDim: 32}
	addFeatures(&p, backwardFeatures&^(flashkit.FeatureBias|flashkit.FeatureMask))
	p.Score.Bias, p.Score.Mask = true, true
	args := new(flashkit.Args)
	*args = *flashkit.NewArgs(flashkit.Problem{Batch: 1, Heads: 4, KVHeads: 2, QLen: 8192, KVLen: 8192, Dim: 32, VDim: 32}, pass)
	args.Seqs = &flashkit.Sequences{QStarts: []int32{0, 4000, 8192}, KVStarts: []int32{0, 4000, 8192}}
	args.Bias, args.Mask = flashkit.F32(make([]float32, 8192), 1, 1, 1, 8192), flashkit.Bools(make([]bool, 8192), 1, 1, 1, 8192)
	args.Slopes = flashkit.F32(make([]float32, 4), 1, 4, 1, 1)
	args.Sink = flashkit.F32(make([]float32, 4), 1, 4, 1, 1)
	if pass == flashkit.PassBackward {
		args.DBias, args.DSink = flashkit.F32(make([]float32, 8192), 1, 1, 1, 8192), flashkit.F32(make([]float32, 4), 1, 4, 1, 1)
	}
	for i := range args.Mask.Bools() {
		args.Mask.Bools()[i] = packed || i%2 == 0
	}
	return p, args
}

func TestCancelFeaturesMidway(t *testing.T) {
	for _, name := range []string{"simd/fwd_generic", "simd/bwd_generic"} {
		k := kernel(t, name)
		p, args := longSample(k.Pass, true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		require.ErrorIs(t, k.Compute(ctx, p, args), context.DeadlineExceeded, k.Name)
		cancel()
	}
}

// What a problem claims beyond its tensors, a length or a number of heads that no memory
// backs, takes neither memory nor time.
func TestClaimsCostNothing(t *testing.T) {
	const huge = 1 << 40
	f32 := func(b, h, n, d int) flashkit.Tensor { return flashkit.F32(make([]float32, b*h*n*d), b, h, n, d) }
	empty := func(b, h, n, d int) flashkit.Tensor { return flashkit.F32([]float32{}, b, h, n, d) }
	type claim struct {
		p    flashkit.Problem
		args flashkit.Args
	}
	small := flashkit.Problem{Batch: 2, Heads: 2, KVHeads: 1, QLen: 3, KVLen: 3, Dim: 4, VDim: 4, Ragged: true}
	claims := map[string]claim{}
	packed := claim{p: small, args: flashkit.Args{
		Q: f32(1, 2, 5, 4), K: f32(1, 1, 5, 4), V: f32(1, 1, 5, 4), O: f32(1, 2, 5, 4), LSE: f32(1, 2, 5, 1),
		DO: f32(1, 2, 5, 4), DQ: f32(1, 2, 5, 4), DK: f32(1, 1, 5, 4), DV: f32(1, 1, 5, 4),
		Seqs: &flashkit.Sequences{QStarts: []int32{0, 3, 5}, KVStarts: []int32{0, 2, 5}},
	}}
	packed.p.QLen = huge
	claims["packed rows"] = packed
	packed.p.QLen, packed.p.KVLen = 3, huge
	claims["packed keys"] = packed
	heads := claim{p: small, args: flashkit.Args{
		Q: empty(2, huge, 0, 4), K: f32(2, 1, 3, 4), V: f32(2, 1, 3, 4), O: empty(2, huge, 0, 4), LSE: empty(2, huge, 0, 1),
		DO: empty(2, huge, 0, 4), DQ: empty(2, huge, 0, 4), DK: f32(2, 1, 3, 4), DV: f32(2, 1, 3, 4),
		Bias: f32(1, 1, 1, 3), DBias: f32(1, 1, 1, 3), Seqs: &flashkit.Sequences{KVLens: []int32{1, 3}},
	}}
	heads.p.Heads, heads.p.QLen, heads.p.Score.Bias = huge, 0, true
	claims["heads without rows"] = heads
	paged := packed
	paged.p.QLen, paged.p.KVLen, paged.p.Page = 3, huge, 2
	paged.args.K, paged.args.V, paged.args.DO = f32(4, 1, 2, 4), f32(4, 1, 2, 4), flashkit.Tensor{}
	paged.args.Seqs = &flashkit.Sequences{QStarts: []int32{0, 3, 5}, KVLens: []int32{3, 1}, Pages: []int32{2, 3, 1, -1}}
	claims["pages"] = paged
	wide := packed
	wide.p.QLen, wide.p.KVLen, wide.p.Dim = 3, 3, 1<<20
	wide.args.Q, wide.args.DQ = empty(1, 2, 0, wide.p.Dim), empty(1, 2, 0, wide.p.Dim)
	wide.args.K, wide.args.DK = empty(1, 1, 0, wide.p.Dim), empty(1, 1, 0, wide.p.Dim)
	wide.args.V, wide.args.DV, wide.args.O, wide.args.DO, wide.args.LSE = empty(1, 1, 0, 4), empty(1, 1, 0, 4), empty(1, 2, 0, 4), empty(1, 2, 0, 4), empty(1, 2, 0, 1)
	wide.args.Seqs = &flashkit.Sequences{QStarts: []int32{0, 0, 0}, KVStarts: []int32{0, 0, 0}}
	wide.p.Score.Sink, wide.args.Sink, wide.args.DSink = true, f32(1, 2, 1, 1), f32(1, 2, 1, 1)
	claims["dims without rows"] = wide
	for name, x := range claims {
		for _, kernelName := range []string{"simd/fwd_generic", "simd/bwd_generic"} {
			k := kernel(t, kernelName)
			if x.p.Page > 0 && k.Pass == flashkit.PassBackward {
				continue
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, k.Compute(t.Context(), x.p, &x.args), "%s %s", k.Name, name)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "%s %s", k.Name, name)
			var c flashkit.Call
			require.NoError(t, c.Set(x.p, k.Pass, &x.args))
			require.Less(t, k.Cost(&c), time.Second, "%s %s", k.Name, name)
			require.Less(t, k.Needs(&c).Host, float64(1<<20), "%s %s", k.Name, name)
			k.Cost(x.p.Ask(k.Pass)) // returns
		}
	}
}

// A row that sees no key now keeps what it holds, to the bit.
func TestCarryKeepsRowsThatSeeNoKey(t *testing.T) {
	k := kernel(t, "simd/fwd_generic")
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 2, Dim: 2, VDim: 2, Carry: true, Band: flashkit.Causal()}
	args := flashkit.NewArgs(p, k.Pass) // rows 0 and 1 see no key
	o := args.O.Float32s()
	copy(o, []float32{float32(math.Copysign(0, -1)), 3, nan32, inf32})
	copy(args.LSE.Float32s(), []float32{.1, 7, 0, 0})
	before := memoryOf([]*flashkit.Tensor{&args.O, &args.LSE})
	require.NoError(t, k.Compute(t.Context(), p, args))
	after := memoryOf([]*flashkit.Tensor{&args.O, &args.LSE})
	require.Equal(t, before[:4], after[:4])
	require.Equal(t, before[8:10], after[8:10])
	require.NotEqual(t, before[10:], after[10:])
}
