package ring_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/ring"
)

// TestConformance holds a Ring of several ranks to every kernel's tests. A call that is cut,
// computed by ranks and joined equals one kernel's call within the case's bound.
func TestConformance(t *testing.T) {
	d := dispatch.New(simd.New()).Unpaired().Frozen() // another kernel, as with LSE, would give other bits
	defer d.Close()
	if testing.Short() && os.Getenv("FLASHKIT_SWEEP") == "" {
		t.Setenv("FLASHKIT_SWEEP", "2") // TestRandomProblems draws more
	}
	conformance.Run(t, &backend{d})
}

type backend struct{ d *dispatch.Dispatcher }

func (b *backend) Name() string { return "ring" }
func (b *backend) Close() error { return nil }

// Parts returns the most ranks: a kernel writes each rank's part of a gradient in the problem's
// type.
func (b *backend) Parts() int {
	if testing.Short() {
		return 3
	}
	return 5
}

func (b *backend) Kernels() (list []flashkit.Kernel) {
	add := func(ranks int, ordered bool) {
		list = append(list, b.kernel(ranks, ordered, flashkit.PassForward, "fwd"), b.kernel(ranks, ordered, flashkit.PassBackward, "bwd"))
	}
	add(3, false)
	if !testing.Short() {
		add(2, true)
		add(5, false)
	}
	return list
}

func (b *backend) kernel(ranks int, ordered bool, pass flashkit.Pass, name string) flashkit.Kernel {
	name = fmt.Sprintf("ring/%s_p%d", name, ranks)
	k := flashkit.Kernel{
		Name: name, About: "ranks in one process", Requires: "", Pass: pass, DTypes: []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16},
		Takes: flashkit.FeatureShift | flashkit.FeatureSoftcap | flashkit.FeatureALiBi | flashkit.FeatureBias | flashkit.FeatureMask |
			flashkit.FeatureSink | flashkit.FeatureDropout | flashkit.FeatureOrigin | flashkit.FeatureRagged | flashkit.FeatureCarry | flashkit.FeatureMixed,
		Cost: func(*flashkit.Call) time.Duration { return time.Millisecond },
	}
	if pass == flashkit.PassBackward {
		k.Takes &^= flashkit.ForwardFeatures
	}
	k.Refuses = func(c *flashkit.Call) string {
		if pass == flashkit.PassForward && !ordered && c.KVLen > longest {
			return "an LSE of float32, by which parts of a row are merged, rounds more than the bound of so many keys: TestLongestRows compares them"
		}
		return ""
	}
	if ordered {
		k.Name += "_ordered"
		if k.Takes &^= flashkit.FeatureRagged; pass == flashkit.PassBackward {
			k.Takes &^= flashkit.FeatureBias
		}
	}
	k.Run = func(ctx context.Context, c *flashkit.Call) error {
		if pass == flashkit.PassForward && loudest(&c.Args.Bias) > loud {
			return &flashkit.UnsupportedError{Kernel: k.Name, Problem: c.Problem, Reason: "an LSE of float32, by which parts of a row are merged, does not hold how many keys share so large a score: TestPartsOfHugeScores has them"}
		}
		return overRanks(ctx, b.d, ranks, ring.Options{Ordered: ordered}, c.Problem, c.Pass, c.Args)
	}
	return k
}

// loud is the largest score at which a float32 LSE still resolves the logarithm of a number of
// keys.
const loud = 1 << 12

// loudest returns the largest magnitude of the finite numbers of x.
func loudest(x *flashkit.Tensor) (most float64) {
	if x.IsZero() {
		return 0
	}
	for _, y := range flashkit.ToF32(*x) {
		if y := math.Abs(float64(y)); y <= math.MaxFloat32 {
			most = max(most, y)
		}
	}
	return most
}

// If all scores of a row are the lowest or largest numbers, the LSE loses the number of keys. Ranks
// then weigh their parts by it: O is a weighted mean of V, and LSE is finite.
func TestPartsOfHugeScores(t *testing.T) {
	d := dispatch.New(simd.New()).Frozen()
	defer d.Close()
	const ranks, rows, keys = 3, 6, 24
	for _, score := range []float32{-math.MaxFloat32, -1e30, math.MaxFloat32} {
		q, o, lse := make([]float32, rows), make([]float32, rows), make([]float32, rows)
		v, bias := make([]float32, keys), make([]float32, rows*keys)
		for j := range v {
			v[j] = float32(j)
		}
		for i := range bias {
			bias[i] = score
		}
		args := &flashkit.Args{
			Q: flashkit.F32(q, 1, 1, rows, 1), K: flashkit.F32(v, 1, 1, keys, 1), V: flashkit.F32(v, 1, 1, keys, 1),
			Bias: flashkit.F32(bias, 1, 1, rows, keys), O: flashkit.F32(o, 1, 1, rows, 1), LSE: flashkit.F32(lse, 1, 1, rows, 1),
		}
		require.NoError(t, overRanks(t.Context(), d, ranks, ring.Options{}, flashkit.ProblemOf(args, flashkit.Band{}), flashkit.PassForward, args))
		for i := range o {
			require.Equal(t, score, lse[i])
			require.Greater(t, o[i], v[0])
			require.Less(t, o[i], v[keys-1])
		}
	}
}

// longest is the most keys for which one kernel's bound has room for merges.
const longest = 1 << 19

// Longer rows equal one kernel's up to the merges. Each merge weighs two parts by LSE, whose
// rounding is a weight's.
func TestLongestRows(t *testing.T) {
	d := dispatch.New(simd.New()).Unpaired().Frozen()
	defer d.Close()
	const ranks, keys = 3, longest + 75_000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	numbers := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64()) + float32(i)/float32(n) // parts differ
		}
		return x
	}
	q, k, v := numbers(4), numbers(keys), numbers(keys)
	run := func(f func(p flashkit.Problem, args *flashkit.Args) error) (o, lse []float32) {
		o, lse = make([]float32, len(q)), make([]float32, len(q))
		args := &flashkit.Args{
			Q: flashkit.F32(q, 1, 1, len(q), 1), K: flashkit.F32(k, 1, 1, keys, 1), V: flashkit.F32(v, 1, 1, keys, 1),
			O: flashkit.F32(o, 1, 1, len(q), 1), LSE: flashkit.F32(lse, 1, 1, len(q), 1),
		}
		require.NoError(t, f(flashkit.ProblemOf(args, flashkit.Band{}), args))
		return o, lse
	}
	want, wantLSE := run(func(p flashkit.Problem, args *flashkit.Args) error { return d.Forward(t.Context(), p, args) })
	got, gotLSE := run(func(p flashkit.Problem, args *flashkit.Args) error {
		return overRanks(t.Context(), d, ranks, ring.Options{}, p, flashkit.PassForward, args)
	})
	for i := range want {
		unit := (1 + math.Abs(float64(wantLSE[i]))) * 0x1p-23
		require.InDelta(t, wantLSE[i], gotLSE[i], ranks*unit)
		require.InDelta(t, want[i], got[i], ranks*unit, "parts lie less than 1 apart")
	}
}

// overRanks computes a whole call by the given number of ranks in this process.
func overRanks(ctx context.Context, d *dispatch.Dispatcher, ranks int, o ring.Options, p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args) error {
	if p.QLen == 0 {
		p.Heads = args.Q.Shape()[1] // a kernel gets fewer
	}
	cut, err := ring.NewCut(p, args.Seqs, ranks, o.Ordered)
	if err != nil {
		return err
	}
	groups, err := ring.Local(ranks)
	if err != nil {
		return err
	}
	clearPadding(p, pass, args)
	errs := make([]error, ranks)
	var join sync.Mutex
	var done sync.WaitGroup
	for rank, g := range groups {
		done.Go(func() {
			r, err := ring.New(g, d, o)
			if err != nil {
				errs[rank] = err
				return
			}
			defer r.Close()
			shard, err := cut.Shard(rank, args)
			if err == nil {
				poison(shard, pass, p)
				if pass == flashkit.PassForward {
					err = r.Forward(ctx, p, shard)
				} else {
					err = r.Backward(ctx, p, shard)
				}
			}
			if err == nil {
				join.Lock()
				defer join.Unlock()
				err = cut.Join(rank, pass, args, shard)
			}
			errs[rank] = err
		})
	}
	done.Wait()
	for _, err := range errs {
		if errors.Is(err, flashkit.ErrUnavailable) || errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return errors.Join(errs...)
}

// poison fills the outputs of a pass with NaN.
func poison(args *flashkit.Args, pass flashkit.Pass, p flashkit.Problem) {
	for _, a := range flashkit.Arguments() {
		if a.Role(&p, pass)&^flashkit.Optional != flashkit.Output {
			continue
		}
		floats, halves := a.Of(args).Float32s(), a.Of(args).Uint16s()
		for i := range floats {
			floats[i] = float32(math.NaN())
		}
		for i := range halves {
			halves[i] = 0x7fff
		}
	}
}

// clearPadding clears the padding after sequences, which belongs to no rank.
func clearPadding(p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args) {
	if args.Seqs == nil {
		return
	}
	for _, a := range flashkit.Arguments() {
		t := a.Of(args)
		if a.Role(&p, pass)&flashkit.Output == 0 || t.IsZero() {
			continue
		}
		lens, n, x := args.Seqs.QLens, p.QLen, float32(0)
		switch a.Name {
		case "DBias":
			lens, n = make([]int32, t.Shape()[0]), t.Shape()[2]
		case "DK", "DV":
			lens, n = args.Seqs.KVLens, p.KVLen
		case "LSE":
			x = float32(math.Inf(-1))
		case "DSink":
			continue
		}
		for b, from := range lens {
			for h := range t.Shape()[1] {
				for r := int(from); r < n; r++ {
					at := t.Offset(b, h, r)
					for c := range t.Shape()[3] {
						if t.DType() == flashkit.Float32 {
							t.Float32s()[at+c] = x
						} else {
							t.Uint16s()[at+c] = 0
						}
					}
				}
			}
		}
	}
}
