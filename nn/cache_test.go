package nn_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/nn"
)

// Decoding gives the whole text's logits for any division into pieces.
func TestDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tokens := someTokens(r, 2, 12, 11)
	for _, timeFirst := range []bool{false, true} {
		c := tiny
		c.TimeFirst = timeFirst
		m := newModel(t, c)
		for _, flash := range []bool{true, false} {
			for _, pieces := range [][]int{{12}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {5, 1, 0, 4, 2}} {
				t.Run(fmt.Sprintf("flash=%v/%v", flash, pieces), func(t *testing.T) {
					m.UseFlashAttention(flash)
					s := inference(t)
					row := func(y nn.Tensor, b, i, n int) []float32 { // position i of sequence b, of n
						if timeFirst {
							return y.Row(i*2 + b)
						}
						return y.Row(b*n + i)
					}
					ids := func(from, n int) (list []int32) {
						for i := range 2 * n {
							b, at := i/max(n, 1), i%max(n, 1)
							if timeFirst {
								b, at = i%2, i/2
							}
							list = append(list, tokens.IDs[b*12+from+at])
						}
						return list
					}
					want := m.Forward(s, nn.NewTokens(ids(0, 12), 2, 12))
					require.NoError(t, s.Err())
					caches, err := m.NewCaches(2)
					require.NoError(t, err)
					at := 0
					for _, n := range pieces {
						s := inference(t)
						got := m.Decode(s, nn.NewTokens(ids(at, n), 2, n), caches)
						require.NoError(t, s.Err())
						for b := range 2 {
							for i := range n {
								near(t, "logits", row(want, b, at+i, 12), row(got, b, i, n), 1e-5)
							}
						}
						at += n
					}
					require.Equal(t, []int32{12, 12}, caches[1].Lens())
					s = inference(t)
					m.Decode(s, nn.NewTokens([]int32{1, 1}, 2, 1), caches)
					require.ErrorContains(t, s.Err(), "beyond the 12 positions")
				})
			}
		}
	}
}

// Cached sequences may differ in length, and rotary positions continue.
func TestDecodeLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	m := nn.NewMultiHeadAttention(4)
	m.KVHeads, m.Causal = 2, true
	m.Rotary, _ = nn.NewRotary(10, 6, 10000, false)
	starts := []int32{0, 9, 11, 16} // lengths 9, 2 and 5
	q, k, v := random(r, 1, 16, 24), random(r, 1, 16, 12), random(r, 1, 16, 12)
	q.Rows, k.Rows, v.Rows = nn.Packed(starts), nn.Packed(starts), nn.Packed(starts)
	want := inference(t)
	y := m.Forward(want, q, k, v)
	require.NoError(t, want.Err())

	for _, config := range []nn.KVCacheConfig{{}, {Page: 5}, {Page: 2, Pages: 9, Rotary: m.Rotary}, {DType: flashkit.Int8}, {Page: 2, DType: flashkit.Int8, Rotary: m.Rotary}} {
		config.Batch, config.Heads, config.Capacity, config.Dim = 3, 2, 10, 6
		own := *m
		if config.Rotary != nil {
			own.Rotary = nil
		}
		decodeLengths(t, &own, config, q, k, v, y)
	}
}

// decodeLengths decodes packed q, k and v in pieces and compares the rows with y.
func decodeLengths(t *testing.T, m *nn.MultiHeadAttention, config nn.KVCacheConfig, q, k, v, y nn.Tensor) {
	starts := q.Starts
	lens := []int32{starts[1], starts[2] - starts[1], starts[3] - starts[2]}
	cache, err := nn.NewKVCache(config)
	require.NoError(t, err)
	require.Equal(t, 10, cache.Capacity())
	bound := 1e-5
	if config.DType == flashkit.Int8 {
		bound = 0.05 // of rounding: an element's error is up to 1/254 of the largest element
	}
	for from := int32(0); from < 9; from += 3 { // three rows of each sequence at a time, while any are left
		part := func(x nn.Tensor) nn.Tensor {
			p := nn.NewTensor(make([]float32, 3*3*x.Features), 3, 3, x.Features)
			p.Lens = make([]int32, 3)
			for b := range 3 {
				p.Lens[b] = max(0, min(3, lens[b]-from))
				for i := range p.Lens[b] {
					copy(p.Row(b*3+int(i)), x.Row(int(starts[b]+from+i)))
				}
			}
			return p
		}
		s := inference(t)
		p := part(q)
		got := m.Decode(s, p, part(k), part(v), cache)
		require.NoError(t, s.Err())
		for b := range 3 {
			for i := range p.Lens[b] {
				near(t, "rows", y.Row(int(starts[b]+from+i)), got.Row(b*3+int(i)), bound)
			}
		}
	}
	require.Equal(t, lens, cache.Lens())
}

func TestKVCacheErrors(t *testing.T) {
	for _, c := range [][4]int{{0, 1, 1, 1}, {1, -1, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}, {1 << 20, 1 << 20, 1 << 20, 1 << 20}} {
		_, err := nn.NewKVCache(nn.KVCacheConfig{Batch: c[0], Heads: c[1], Capacity: c[2], Dim: c[3]})
		require.ErrorContains(t, err, "KVCacheConfig.")
	}
	r := rand.New(rand.NewPCG(5, 6))
	c, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 2, Heads: 2, Capacity: 4, Dim: 3})
	require.NoError(t, err)
	require.NoError(t, c.Append(random(r, 2, 3, 6), random(r, 2, 3, 6)))
	before := append([]int32(nil), c.Lens()...)
	require.ErrorContains(t, c.Append(random(r, 2, 2, 6), random(r, 2, 2, 6)), "do not fit: it has 3 of 4")
	require.ErrorContains(t, c.Append(random(r, 1, 1, 6), random(r, 1, 1, 6)), "Batch = 1: must be 2")
	require.ErrorContains(t, c.Append(random(r, 2, 1, 6), random(r, 2, 0, 6)), "the same")
	require.ErrorContains(t, c.Append(random(r, 2, 1, 5), random(r, 2, 1, 6)), "Features = 5: must be 6")
	require.Equal(t, before, c.Lens())

	m := nn.NewMultiHeadAttention(2)
	for want, f := range map[string]func(s *nn.Step){
		"is for inference": func(s *nn.Step) {
			s.BeginTraining(t.Context(), 0, 0)
			m.Decode(s, random(r, 2, 1, 6), random(r, 2, 1, 6), random(r, 2, 1, 6), c)
		},
		"cache = nil": func(s *nn.Step) { m.Decode(s, random(r, 2, 1, 6), random(r, 2, 1, 6), random(r, 2, 1, 6), nil) },
		"those of k":  func(s *nn.Step) { m.Decode(s, random(r, 2, 1, 6), random(r, 2, 2, 6), random(r, 2, 2, 6), c) },
		"2 heads of 3": func(s *nn.Step) {
			m.Decode(s, random(r, 2, 1, 8), random(r, 2, 1, 8), random(r, 2, 1, 8), c)
		},
		"Transformer: caches.len": func(s *nn.Step) { newModel(t, tiny).Decode(s, nn.NewTokens([]int32{1}, 1, 1), nil) },
	} {
		s := inference(t)
		f(s)
		require.ErrorContains(t, s.Err(), want)
	}
	require.Equal(t, before, c.Lens())
}

// Forked sequences decode as without SharedPrefix, and a warm step allocates nothing.
func TestDecodeSharedPrefix(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	rotary, err := nn.NewRotary(64, 8, 10000, false)
	require.NoError(t, err)
	var results [2][]float32
	q, k, v := random(r, 3, 2, 32), random(r, 3, 2, 16), random(r, 3, 2, 16)
	q.Lens, k.Lens, v.Lens = []int32{2, 1, 2}, []int32{2, 1, 2}, []int32{2, 1, 2}
	prompt := nn.NewTensor(randoms(r, 11*16), 1, 11, 16)
	prompt.Rows = nn.Packed([]int32{0, 11, 11, 11})
	for i := range results {
		cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 3, Heads: 2, Capacity: 24, Dim: 8, Page: 4, DType: flashkit.Float16, Rotary: rotary})
		require.NoError(t, err)
		require.NoError(t, cache.Append(prompt, prompt))
		require.NoError(t, cache.Fork(0, 1))
		require.NoError(t, cache.Fork(0, 2))
		m := nn.NewMultiHeadAttention(4)
		m.KVHeads, m.Causal, m.SharedPrefix = 2, true, i == 1
		s := inference(t)
		results[i] = append([]float32(nil), m.Decode(s, q, k, v, cache).Data...)
		require.NoError(t, s.Err())
		prefix, seqs := cache.Prefix()
		require.Equal(t, 8, prefix.Len)
		require.Equal(t, []int32{5, 4, 5}, seqs.KVLens)
		if ctx := t.Context(); !allocates {
			require.Zero(t, allocs.PerRun(20, func() {
				s.Begin(ctx)
				m.Decode(s, q, k, v, cache)
				for b, n := range q.Lens {
					require.NoError(t, cache.Truncate(b, 11+int(n)))
				}
				require.NoError(t, s.Err())
			}))
		}
	}
	near(t, "rows", results[0], results[1], 1e-5)
	require.NotEqual(t, results[0], results[1], "SharedPrefix has no effect")
}

// A cache stores rows in the memory that Zeros returns.
func TestKVCacheZeros(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	var made []flashkit.Tensor
	config := nn.KVCacheConfig{Batch: 2, Heads: 2, Capacity: 8, Dim: 4, DType: flashkit.Int8, Zeros: func(d flashkit.DType, batch, heads, rows, row int) flashkit.Tensor {
		made = append(made, flashkit.Zeros(d, batch, heads, rows, row))
		return made[len(made)-1]
	}}
	c, err := nn.NewKVCache(config)
	require.NoError(t, err)
	require.NoError(t, c.Append(random(r, 2, 3, 8), random(r, 2, 3, 8)))
	k, v := c.View()
	kScale, vScale := c.Scales()
	require.Equal(t, []flashkit.Tensor{k, v, kScale, vScale}, made)
	require.NotZero(t, made[0].Int8s()[0])
	require.NotZero(t, made[3].Float32s()[0])
}
