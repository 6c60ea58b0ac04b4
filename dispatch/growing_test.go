package dispatch

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// A taker is a backend whose kernels accept every feature and compute nothing.
type taker struct{ names []string }

func (t taker) Name() string { return "taker" }
func (t taker) Close() error { return nil }
func (t taker) Kernels() (list []flashkit.Kernel) {
	for _, name := range t.names {
		list = append(list, flashkit.Kernel{
			Name: "taker/" + name, Takes: flashkit.AllFeatures,
			Cost: func(c *flashkit.Call) time.Duration { return time.Duration(c.FLOPs()) + time.Millisecond },
			Run:  func(context.Context, *flashkit.Call) error { return nil },
		})
	}
	return list
}

// plans returns the number of plans made: kept and evicted.
func (d *Dispatcher) plans() int { return len(d.memory.recent.Kept()) + d.memory.recent.Evicted() }

// cache returns a KV cache of decoding sequences of different lengths, padded or paged.
func cache(page, capacity int) (flashkit.Problem, *flashkit.Args) {
	p := flashkit.Problem{Batch: 3, Heads: 4, KVHeads: 2, QLen: 1, KVLen: capacity, Dim: 8, VDim: 8, Ragged: true, Page: page}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.LSE = flashkit.Tensor{} // LSE would require the backward pass's plan too
	args.Seqs.KVLens = make([]int32, p.Batch)
	return p, args
}

// grow adds a token to the cache.
func grow(args *flashkit.Args, token int) {
	for b := range args.Seqs.KVLens {
		args.Seqs.KVLens[b] = int32(token + b)
	}
}

// A growing cache reuses the plan of its first token at any lengths, and its calls do not allocate.
func TestGrowingCache(t *testing.T) {
	const tokens = 10_000
	for _, page := range []int{0, 16} {
		d := New(taker{[]string{"fwd_only"}})
		p, args := cache(page, tokens+2)
		token, ctx := 0, t.Context()
		step := func() {
			token++
			grow(args, token)
			if err := d.Forward(ctx, p, args); err != nil {
				t.Fatal(err)
			}
		}
		step()
		require.Zero(t, testing.AllocsPerRun(tokens-2, step))
		require.Equal(t, tokens, token)
		require.Equal(t, 1, d.plans(), "pages of %d", page)
	}
}

// Measurements of plain problems do not affect problems with features, and vice versa.
func TestFeaturesAreARegimeOfTheirOwn(t *testing.T) {
	d := New(taker{[]string{"fwd_x", "fwd_y"}})
	plain := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 100, KVLen: 100, Dim: 64, VDim: 64}
	extra := plain
	extra.Score.Softcap = 30
	fast := func(p flashkit.Problem) string {
		k, err := d.Pick(p, flashkit.PassForward)
		require.NoError(t, err)
		return k.Name
	}
	require.Equal(t, "taker/fwd_x", fast(plain))
	require.NoError(t, d.Learn("taker/fwd_y", plain, time.Millisecond))
	require.NoError(t, d.Learn("taker/fwd_x", plain, time.Second))
	require.Equal(t, "taker/fwd_y", fast(plain))
	require.Equal(t, "taker/fwd_x", fast(extra))
	require.NoError(t, d.Learn("taker/fwd_x", extra, time.Millisecond))
	require.Equal(t, "taker/fwd_y", fast(plain))
	require.Equal(t, "taker/fwd_x", fast(extra))
}

// A probe does not allocate the pages that a caller's pool claims.
func TestProbeOfHugePages(t *testing.T) {
	d := New(taker{[]string{"fwd_x", "fwd_y"}})
	for _, page := range []int{math.MaxInt>>23 + 1, math.MaxInt>>3 + 1} {
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: page, Dim: 1, VDim: 1, Ragged: true, Page: page}
		one := func() flashkit.Tensor { return flashkit.F32([]float32{0}, 1, 1, 1, 1) }
		none := flashkit.F32([]float32(nil), 0, 1, page, 1)
		args := &flashkit.Args{Q: one(), K: none, V: none, O: one(), Seqs: &flashkit.Sequences{KVLens: []int32{0}, Pages: []int32{0}}}
		for range 5 {
			require.NoError(t, d.Forward(t.Context(), p, args))
		}
		require.NoError(t, d.Probe(t.Context(), p, flashkit.PassForward))
	}
}

// A cache grows by a token per call.
func BenchmarkGrowingCache(b *testing.B) {
	const tokens = 10_000
	for _, c := range []struct {
		name    string
		backend flashkit.Backend
		page    int
	}{{"dispatch", taker{[]string{"fwd_only"}}, 0}, {"padded", simd.New(), 0}, {"paged", simd.New(), 16}} {
		b.Run(c.name, func(b *testing.B) {
			d := New(c.backend)
			defer d.Close()
			p, args := cache(c.page, tokens+2)
			token, ctx := 0, b.Context()
			b.ReportAllocs()
			for b.Loop() {
				token = token%tokens + 1
				grow(args, token)
				if err := d.Forward(ctx, p, args); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(d.plans()), "plans")
		})
	}
}

// Calls with a new number of keys, compared with a known one.
func BenchmarkUnseenLength(b *testing.B) {
	for _, rows := range []int{1, 512} {
		for _, c := range []struct {
			name   string
			unseen bool
		}{{"seen", false}, {"unseen", true}} {
			b.Run(map[int]string{1: "decode", 512: "prefill"}[rows]+"/"+c.name, func(b *testing.B) {
				d := New(hollowCPU{simd.New()})
				defer d.Close()
				p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 2, QLen: rows, KVLen: 513, Dim: 8, VDim: 8}
				const most = 1 << 14
				data := make([]float32, 2*most*8)
				args := &flashkit.Args{Q: flashkit.F32(data, 1, 2, rows, 8), O: flashkit.F32(make([]float32, 2*rows*8), 1, 2, rows, 8)}
				ctx := b.Context()
				b.ReportAllocs()
				for b.Loop() {
					if c.unseen {
						p.KVLen = p.KVLen%most + 1
					}
					args.K = flashkit.F32(data, 1, 2, p.KVLen, 8)
					args.V = args.K
					if err := d.Forward(ctx, p, args); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// hollowCPU has the CPU's kernels without their computation.
type hollowCPU struct{ *simd.Backend }

func (h hollowCPU) Kernels() []flashkit.Kernel {
	list := h.Backend.Kernels()
	for i := range list {
		list[i].Run = func(context.Context, *flashkit.Call) error { return nil }
	}
	return list
}

// Reports name the call's problem, not the plan's.
func TestReportsOfCalls(t *testing.T) {
	var ran []flashkit.Problem
	d := New(taker{[]string{"fwd_only"}}).Unpaired().WithObserver(func(r Ran) { ran = append(ran, r.Problem) })
	for _, n := range []int{1000, 1001} {
		p, args := cache(0, n)
		require.NoError(t, d.Forward(t.Context(), p, args))
		require.Equal(t, p, ran[len(ran)-1])
	}
	require.Equal(t, 1, d.plans())
}
