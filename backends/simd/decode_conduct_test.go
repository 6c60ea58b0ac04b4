package simd_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// A mask may show a key to one row and hide this key from the next row. The values of the key then
// change no bit of the second row's result.
func TestDecodeMaskHidesFromRows(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	spoiled, ran := 0, false
	for i := range 300 {
		features := flashkit.FeatureMask | anyFeatures(r)&^flashkit.FeatureCarry
		s := newSample(r, drawDecode(t, r, features, dtypes[i%3]))
		p, a := &s.p, &s.args
		b := r.IntN(p.Batch)
		if s.m[b] == 0 || s.n[b] == 0 {
			continue
		}
		j, g := r.IntN(s.m[b]), r.IntN(p.KVHeads)
		forDecode(*p, func(k flashkit.Kernel) {
			ran = true
			run := func() (o, lse flashkit.Tensor) {
				fill(&a.O, math.NaN())
				fill(&a.LSE, math.NaN())
				require.NoError(t, k.Compute(t.Context(), *p, a), s.about)
				return s.copied(&a.O), s.copied(&a.LSE)
			}
			o, lse := run()
			for _, with := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				for _, x := range []*flashkit.Tensor{&a.K, &a.V} {
					at := s.keyAt(x, b, g, j)
					before := make([]float64, x.Shape()[3])
					for c := range before {
						before[c] = get(x, at+c)
						put(x, at+c, with)
					}
					o2, lse2 := run()
					for c := range before {
						put(x, at+c, before[c])
					}
					spoiled += s.sameWhereHidden(t, k.Name, [2][2]*flashkit.Tensor{{&o, &o2}, {&lse, &lse2}}, b, g, j)
				}
			}
		})
	}
	if ran {
		require.Greater(t, spoiled, 100, "rows beside those that see what is not finite")
	}
}

// sameWhereHidden compares pairs of tensors in the rows that do not see key j of KV head g of
// sequence b. It returns the number of such rows with a neighbor that sees the key.
func (s *sample) sameWhereHidden(t *testing.T, name string, pairs [2][2]*flashkit.Tensor, b, g, j int) (n int) {
	t.Helper()
	group := s.p.Heads / s.p.KVHeads
	seen := 0
	for h := g * group; h < (g+1)*group; h++ {
		for i := range s.n[b] {
			sees := false
			for _, key := range s.seen(b, h, i) {
				sees = sees || key == j
			}
			if sees {
				seen++
				continue
			}
			n++
			for _, pair := range pairs {
				at := s.rowAt(pair[0], b, h, i)
				for c := range pair[0].Shape()[3] {
					got, want := get(pair[1], at+c), get(pair[0], at+c)
					if math.Float64bits(got) != math.Float64bits(want) {
						t.Fatalf("%s: element %d of row %d of head %d of sequence %d is %g, not %g, by key %d, which it does not see: %s", name, c, i, h, b, got, want, j, s.about)
					}
				}
			}
		}
	}
	if seen == 0 {
		return 0
	}
	return n
}

// Calls for a cache that grows by one token per call allocate nothing, padded or in pages, with or
// without features.
func TestDecodeGrowingCacheAllocatesNothing(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector sync.Pool drops objects at random")
	}
	const tokens = 10_000
	for _, name := range []string{
		"b1-h2-g1-n1-m10002-d8-f32-ragged", "b3-h2-g1-n1-m10002-d8-bf16-ragged-page16",
		"b2-h2-g1-n1-m10002-d8-f32-softcap30-alibi-bias-mask-sink-dropout0.1-ragged-page4",
		"b2-h4-g1-n1-m10002-d32-bf16-int8group32-ragged-page16", "b1-h2-g1-n1-m10002-d40-f32-int8group32-ragged-rowmax",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		args := flashkit.NewArgs(p, flashkit.PassForward)
		for i := range args.Mask.Bools() {
			args.Mask.Bools()[i] = i%3 > 0
		}
		args.Seqs.KVLens = make([]int32, p.Batch)
		forDecode(p, func(k flashkit.Kernel) {
			most, token, ctx := tokens, 0, context.Background()
			if testing.Short() {
				most = tokens / 20
			}
			step := func() {
				token++
				for b := range args.Seqs.KVLens {
					args.Seqs.KVLens[b] = int32(min(p.KVLen, token*tokens/most+b))
				}
				if err := k.Compute(ctx, p, args); err != nil {
					t.Fatal(err)
				}
			}
			for b := range args.Seqs.KVLens {
				args.Seqs.KVLens[b] = int32(p.KVLen)
			}
			require.NoError(t, k.Compute(ctx, p, args)) // the workspace of the longest
			require.Zero(t, testing.AllocsPerRun(most-1, step), "%s %s", k.Name, name)
		})
	}
}

// Calls for a batch of sequences of any lengths allocate nothing.
func TestDecodeFeaturesAllocateNothing(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector sync.Pool drops objects at random")
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for i := range 12 {
		s := newSample(r, drawDecode(t, r, anyFeatures(r), dtypes[i%3]))
		forDecode(s.p, func(k flashkit.Kernel) {
			run := func() { require.NoError(t, k.Compute(t.Context(), s.p, &s.args)) }
			run()
			require.Zero(t, allocs.PerRun(20, run), "%s: %s", k.Name, s.about)
			var c flashkit.Call
			require.NoError(t, c.Set(s.p, k.Pass, &s.args))
			require.Zero(t, allocs.PerRun(20, func() { k.Cost(&c); k.Needs(&c) }), "%s: %s", k.Name, s.about)
		})
	}
}
