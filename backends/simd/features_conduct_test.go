package simd_test

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// outputsOf returns the tensors that a pass writes.
func outputsOf(s *sample, pass flashkit.Pass) (list []*flashkit.Tensor) {
	for _, a := range flashkit.Arguments() {
		if a.Role(&s.p, pass)&flashkit.Output != 0 && !a.Of(&s.args).IsZero() {
			list = append(list, a.Of(&s.args))
		}
	}
	return list
}

// memoryOf returns the bits of the memory of all tensors in a list.
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

// backwardFeatures are the features that both passes support.
const backwardFeatures = flashkit.AllFeatures &^ flashkit.ForwardFeatures

func TestFeaturesGiveTheSameBitsForAnyNumberOfWorkers(t *testing.T) {
	slow.UnderRace(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for i := range 8 {
		features := backwardFeatures &^ (flashkit.FeatureRanges * flashkit.Feature(i%2)) // some kernels do not support ranges
		s := newSample(r, drawProblem(t, r, features, dtypes[r.IntN(3)]))
		for _, k := range simd.New().Kernels() {
			if k.Fits(s.p.Ask(k.Pass)) != "" {
				continue
			}
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
				require.Equal(t, want, got, "%s with %d workers: %s", k.Name, procs, s.about)
			}
		}
	}
}

func TestFeaturesAllocateNothing(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector sync.Pool drops objects at random")
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	forward := flashkit.AllFeatures
	for i := range 6 {
		features := backwardFeatures
		if i%2 == 0 {
			features = forward
		}
		if i < 3 { // some kernels do not support these
			features &^= flashkit.FeatureRanges | flashkit.FeatureRowMax | flashkit.FeatureKeyMass
		}
		s := newSample(r, drawProblem(t, r, features, dtypes[i%3]))
		for _, k := range simd.New().Kernels() {
			if k.Fits(s.p.Ask(k.Pass)) != "" {
				continue
			}
			run := func() { require.NoError(t, k.Compute(t.Context(), s.p, &s.args)) }
			run()
			require.Zero(t, allocs.PerRun(20, run), "%s: %s", k.Name, s.about)
			var c flashkit.Call
			require.NoError(t, c.Set(s.p, k.Pass, &s.args))
			require.Zero(t, allocs.PerRun(20, func() { k.Cost(&c); k.Needs(&c) }), "%s: %s", k.Name, s.about)
		}
	}
}

// longSample returns a call with many pairs of a row and a key. The test cancels the call long
// before its end.
func longSample(pass flashkit.Pass, packed bool) (flashkit.Problem, *flashkit.Args) {
	p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: 8192, KVLen: 8192, Dim: 32, VDim: 32}
	addFeatures(&p, backwardFeatures&^(flashkit.FeatureBias|flashkit.FeatureMask|flashkit.FeatureRanges))
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
	for _, k := range simd.New().Kernels() {
		p, args := longSample(k.Pass, true)
		if k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		require.ErrorIs(t, k.Compute(ctx, p, args), context.DeadlineExceeded, k.Name)
		cancel()
	}
}

// A problem may have a huge length or number of heads if its tensors are empty. Such a number must
// cost neither memory nor time.
func TestClaimsCostNothing(t *testing.T) {
	const huge = math.MaxInt >> 24
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
	most := uint64(max(4, runtime.GOMAXPROCS(0))) << 18 // each worker holds tiles
	for name, x := range claims {
		for _, k := range simd.New().Kernels() {
			if k.Fits(x.p.Ask(k.Pass)) != "" {
				continue
			}
			most := most * planes(k.Name)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, k.Compute(t.Context(), x.p, &x.args), "%s %s", k.Name, name)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, most, "%s %s", k.Name, name)
			var c flashkit.Call
			require.NoError(t, c.Set(x.p, k.Pass, &x.args))
			require.Less(t, k.Cost(&c), time.Second, "%s %s", k.Name, name)
			require.Less(t, k.Needs(&c).Host, float64(most), "%s %s", k.Name, name)
			k.Cost(x.p.Ask(k.Pass)) // returns
		}
	}
}

// With Carry, a row of O that sees no key of the call keeps its bits, in decode kernels, too.
func TestCarryKeepsRowsThatSeeNoKey(t *testing.T) {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 2, Dim: 2, VDim: 2, Carry: true, Band: flashkit.Causal()}
	for _, k := range simd.New().Kernels() {
		if k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		args := flashkit.NewArgs(p, k.Pass) // rows 0 and 1 see no key
		o := args.O.Float32s()
		copy(o, []float32{float32(math.Copysign(0, -1)), 3, nan32, inf32})
		copy(args.LSE.Float32s(), []float32{.1, 7, 0, 0})
		before := memoryOf([]*flashkit.Tensor{&args.O, &args.LSE})
		require.NoError(t, k.Compute(t.Context(), p, args))
		after := memoryOf([]*flashkit.Tensor{&args.O, &args.LSE})
		require.Equal(t, before[:4], after[:4], k.Name)
		require.Equal(t, before[8:10], after[8:10], k.Name)
		require.NotEqual(t, before[10:], after[10:], k.Name)
	}
}

// A tile of keys may begin anywhere in a page and end in another page.
func TestTilesAcrossPages(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for i := range 30 {
		p := drawProblem(t, r, flashkit.FeaturePage, dtypes[i%2*(i%3)])
		p.Batch, p.QLen, p.KVLen, p.Page = 3, 1+r.IntN(3), 300+r.IntN(300), []int{10, 64, 70}[i%3]
		p.Band = flashkit.Window(60+r.IntN(200), 0)
		newSample(r, p).check(t, r)
	}
}

// If a mask hides all keys from a row, the row may hold any values. They do not change the
// gradients of the keys.
func TestMaskHidesRows(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	k := kernel(t, "simd/bwd_generic")
	for i := range 6 {
		p := drawProblem(t, r, flashkit.FeatureMask|flashkit.FeatureRagged|flashkit.FeatureSoftcap, dtypes[i%3])
		p.Heads = p.KVHeads // one query head per KV head
		s := newSample(r, p)
		a := &s.args
		fill(&a.O, 0)
		fill(&a.LSE, 3)
		require.NoError(t, k.Compute(t.Context(), p, a))
		before := map[*flashkit.Tensor][]float32{&a.DQ: values(a.DQ), &a.DK: values(a.DK), &a.DV: values(a.DV)}
		b := r.IntN(p.Batch)
		if s.n[b] == 0 {
			continue
		}
		h, row := r.IntN(p.Heads), r.IntN(s.n[b])
		for _, x := range []*flashkit.Tensor{&a.Q, &a.DO} {
			put(x, s.rowAt(x, b, h, row), math.NaN())
		}
		seen := map[int]bool{}
		for _, j := range s.seen(b, h, row) {
			seen[s.keyAt(&a.DK, b, h, j)] = true
			seen[-1-s.keyAt(&a.DV, b, h, j)] = true
		}
		require.NoError(t, k.Compute(t.Context(), p, a))
		for x, want := range before {
			at := 0
			each(*x, func(pos [4]int, _ int) {
				first := x.Offset(pos[0], pos[1], pos[2])
				other := x == &a.DQ && first != s.rowAt(x, b, h, row) || x == &a.DK && !seen[first] || x == &a.DV && !seen[-1-first]
				if got := float32(get(x, first+pos[3])); other && math.Float32bits(got) != math.Float32bits(want[at]) && want[at] == want[at] {
					t.Fatalf("%s: NaN in row %d of head %d of sequence %d shows in %v", s.about, row, h, b, pos)
				}
				at++
			})
		}
	}
}

// The gradient of a bias that repeats over very many heads is exact enough.
func TestLongSumOfDBias(t *testing.T) {
	slow.UnderRace(t)
	const heads = 1 << 18
	k := kernel(t, "simd/bwd_generic")
	one := 1 + rand.IntN(2)
	for rows := 1; rows <= 2; rows++ { // a bias with one row, which both query rows share, or with two rows
		if testing.Short() && rows != one {
			continue
		}
		p := flashkit.Problem{Batch: 1, Heads: heads, KVHeads: heads, QLen: 2, KVLen: 1, Dim: 1, VDim: 1}
		p.Score.Bias = true
		args := flashkit.NewArgs(p, k.Pass)
		args.Bias, args.DBias = flashkit.F32(make([]float32, rows), 1, 1, rows, 1), flashkit.F32(make([]float32, rows), 1, 1, rows, 1)
		want, x := make([]float64, rows), .5+rand.Float32()
		for i := range args.DLSE.Float32s() { // with one key, dS is the gradient of LSE
			args.DLSE.Float32s()[i] = x // equal numbers: all roundings of their sum have the same direction
			want[i%rows] += float64(x)
		}
		require.NoError(t, k.Compute(t.Context(), p, args))
		for i := range want {
			require.InEpsilon(t, want[i], args.DBias.Float32s()[i], 6e-5)
		}
	}
}

// With large scores, errors are not much larger than the errors of the plain algorithm in float32.
func TestFeaturesOfLargeScores(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	k := kernel(t, "simd/fwd_generic")
	for _, feature := range []flashkit.Feature{flashkit.FeatureSoftcap, flashkit.FeatureBias, flashkit.FeatureALiBi, flashkit.FeatureSink, flashkit.FeatureMask} {
		p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 150, KVLen: 100, Dim: 64, VDim: 8, Scale: 1}
		addFeatures(&p, feature)
		if p.Score.Softcap != 0 {
			p.Score.Softcap = 8000
		}
		s := newSample(r, p)
		for s.rowsWithKeys() < p.Heads*p.QLen/2 { // a sum of only a few errors would depend on chance
			s = newSample(r, p)
		}
		base := make([]float32, p.Dim) // all keys are close to base, so that no weight is negligible
		for i := range base {
			base[i] = float32(r.NormFloat64()) // base is not a copy of a query, because the largest score would then dominate the sum
		}
		change(s.args.K, func(at [4]int, old float32) float32 { return base[at[3]] + old/3200 })
		scaleBy(s.args.Q, 400) // scores up to 1e4
		var o, lse [2]float64  // sums of squared errors: of the kernel, and of the plain algorithm
		wantO, wantLSE := s.expectForward()
		require.NoError(t, k.Compute(t.Context(), p, &s.args))
		for h := range p.Heads {
			for i := range p.QLen {
				if len(s.seen(0, h, i)) == 0 {
					continue
				}
				naive, naiveLSE := s.naive(0, h, i)
				for c, x := range naive {
					at := s.args.O.Offset(0, h, i) + c
					o[0] += square(get(&s.args.O, at) - wantO.list[at].x)
					o[1] += square(float64(x) - wantO.list[at].x)
				}
				at := s.args.LSE.Offset(0, h, i)
				lse[0] += square(get(&s.args.LSE, at) - wantLSE.list[at].x)
				lse[1] += square(float64(naiveLSE) - wantLSE.list[at].x)
			}
		}
		t.Logf("%v: squares of the errors of O %.2g, plain %.2g, of LSE %.2g, plain %.2g", feature, o[0], o[1], lse[0], lse[1])
		require.LessOrEqual(t, o[0], 2*o[1], "%v", feature)
		require.LessOrEqual(t, lse[0], 2*lse[1], "%v", feature)
	}
}

func square(x float64) float64 { return x * x }

// rowsWithKeys counts the query rows of the first sequence that see a key.
func (s *sample) rowsWithKeys() (n int) {
	for h := range s.p.Heads {
		for i := range s.p.QLen {
			if len(s.seen(0, h, i)) > 0 {
				n++
			}
		}
	}
	return n
}

// naive computes a row in float32 by the plain algorithm.
func (s *sample) naive(b, h, i int) (o []float32, lse float32) {
	p, a := &s.p, &s.args
	g := h / (p.Heads / p.KVHeads)
	var scores []float32
	seen := s.seen(b, h, i)
	m := float32(math.Inf(-1))
	if p.Score.Sink {
		m = a.Sink.Float32s()[a.Sink.Offset(0, h, 0)]
	}
	sink := m
	for _, j := range seen {
		var x float32
		for c := range p.Dim {
			x += float32(float32(get(&a.Q, s.rowAt(&a.Q, b, h, i)+c)) * float32(get(&a.K, s.keyAt(&a.K, b, g, j)+c)))
		}
		x *= float32(p.SoftmaxScale())
		if c := p.Score.Softcap; c != 0 {
			x = c * float32(math.Tanh(float64(x/c)))
		}
		if p.Score.Bias {
			x += float32(get(&a.Bias, pairAt(&a.Bias, b, h, i, j)))
		}
		if p.Score.ALiBi {
			distance := j - i - (s.m[b] - s.n[b])
			x -= float32(a.Slopes.Float32s()[a.Slopes.Offset(0, h, 0)] * float32(max(distance, -distance)))
		}
		scores, m = append(scores, x), max(m, x)
	}
	exp := func(x float32) float32 { return float32(math.Exp(float64(x))) }
	l := float32(0)
	if p.Score.Sink {
		l = exp(sink - m)
	}
	for _, x := range scores {
		l += exp(x - m)
	}
	o = make([]float32, p.VDim)
	for c := range o {
		for n, x := range scores {
			o[c] += float32(exp(x-m) / l * float32(get(&a.V, s.keyAt(&a.V, b, g, seen[n])+c)))
		}
	}
	return o, m + float32(math.Log(float64(l)))
}
