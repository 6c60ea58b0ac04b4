package nn_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/nn"
)

// Each wrong argument is refused by its name, and changes nothing.
func TestKVCacheRefuses(t *testing.T) {
	good := nn.KVCacheConfig{Batch: 2, Heads: 1, Capacity: 8, Dim: 4, Page: 2, Pages: 5}
	rotary, err := nn.NewRotary(6, 6, 10000, false)
	require.NoError(t, err)
	for want, change := range map[string]func(c *nn.KVCacheConfig){
		"KVCacheConfig.Batch = -1":                 func(c *nn.KVCacheConfig) { c.Batch = -1 },
		"KVCacheConfig.Heads = 9":                  func(c *nn.KVCacheConfig) { c.Heads = math.MaxInt },
		"KVCacheConfig.Capacity = 0":               func(c *nn.KVCacheConfig) { c.Capacity = 0 },
		"KVCacheConfig.Dim = 2147483":              func(c *nn.KVCacheConfig) { c.Dim, c.Heads = math.MaxInt32, 2 },
		"KVCacheConfig.DType = bool":               func(c *nn.KVCacheConfig) { c.DType = flashkit.Bool },
		"KVCacheConfig.DType = unknown":            func(c *nn.KVCacheConfig) { c.DType = 200 },
		"KVCacheConfig.Page = 3":                   func(c *nn.KVCacheConfig) { c.Page = 3 },
		"KVCacheConfig.Page = 16":                  func(c *nn.KVCacheConfig) { c.Page = 16 },
		"KVCacheConfig.Page = -2":                  func(c *nn.KVCacheConfig) { c.Page = -2 },
		"KVCacheConfig.Pages = -5":                 func(c *nn.KVCacheConfig) { c.Pages = -5 },
		"KVCacheConfig.Pages = 5: must":            func(c *nn.KVCacheConfig) { c.Page = 0 },
		"KVCacheConfig.Pages = 9223372":            func(c *nn.KVCacheConfig) { c.Pages = math.MaxInt },
		"KVCacheConfig.Rotary = 6":                 func(c *nn.KVCacheConfig) { c.Rotary = rotary },
		"KVCacheConfig.Int8Group = 32: must be 0":  func(c *nn.KVCacheConfig) { c.Int8Group = 32 },
		"KVCacheConfig.Int8Group = 64: must be 32": func(c *nn.KVCacheConfig) { c.DType, c.Int8Group = flashkit.Int8, 64 },
		"KVCacheConfig.Int8Group = -4":             func(c *nn.KVCacheConfig) { c.DType, c.Int8Group = flashkit.Int8, -4 },
		"KVCacheConfig.Scales = f16":               func(c *nn.KVCacheConfig) { c.Scales = flashkit.Float16 },
		"KVCacheConfig.Scales = bf16":              func(c *nn.KVCacheConfig) { c.DType, c.Scales = flashkit.Int8, flashkit.BFloat16 },
		"KVCacheConfig.Rotary = 0":                 func(c *nn.KVCacheConfig) { c.Rotary = new(nn.Rotary) },
	} {
		c := good
		change(&c)
		_, err := nn.NewKVCache(c)
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*flashkit.ProblemError))
	}

	good.Dim, good.Rotary = 6, rotary
	m := newCacheModel(t, good, engine.NewStep())
	c := m.cache
	x := nn.NewTensor(make([]float32, 2*5*6), 2, 5, 6)
	short := func(lens ...int32) nn.Tensor { y := x; y.Lens = lens; return y }
	require.NoError(t, c.Append(short(5, 0), short(5, 0)))
	require.NoError(t, c.Fork(0, 1))
	before := [][]int32{append([]int32(nil), c.Lens()...), append([]int32(nil), c.Sequences().Pages...), append([]int32(nil), c.Next()...)}
	for want, err := range map[string]error{
		"KVCache: b = -1":                  c.Remove(-1),
		"KVCache: b = 2":                   c.Truncate(2, 0),
		"KVCache: n = 6":                   c.Truncate(0, 6),
		"KVCache: n = -1":                  c.Truncate(0, -1),
		"KVCache: b = 7":                   c.Fork(7, 0),
		"KVCache: to = -7":                 c.Fork(0, -7),
		"KVCache: b = 3":                   c.Evict(3, 0, 0),
		"KVCache: from = 6":                c.Evict(1, 6, 6),
		"KVCache: to = 1":                  c.Evict(1, 2, 1),
		"KVCache: to = 6":                  c.Evict(1, 2, 6),
		"rows of sequence 0 = 4":           c.Append(short(4, 0), short(4, 0)),
		"rows of sequence 1 = 2: from pos": c.Append(short(0, 2), short(0, 2)),
		"the rows of k and v the same":     c.Append(short(1, 0), short(0, 1)),
		"KVCache: k.Features":              c.Append(x.Columns(0, 5), x),
		"KVCache: v.Features":              c.Append(x, x.Columns(0, 5)),
		"KVCache: k.Data.len":              c.Append(nn.NewTensor(nil, 2, 1, 6), x),
		"KVCache: k.Lens[0] = -1":          c.Append(short(-1, 0), short(-1, 0)),
		"KVCache: k.Batch = 1":             c.Append(x.Part(0, 1), x.Part(0, 1)),
	} {
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*flashkit.ProblemError))
	}
	require.Equal(t, before, [][]int32{c.Lens(), c.Sequences().Pages, c.Next()})
	require.Nil(t, c.Positions(-1))
	require.Nil(t, c.Positions(2))
	require.Equal(t, 2, c.FreePages())

	// The pool has no page for copies of shared pages.
	tight, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 2, Heads: 1, Capacity: 8, Dim: 6, Page: 2, Pages: 3})
	require.NoError(t, err)
	require.NoError(t, tight.Append(short(5, 0), short(5, 0)))
	require.NoError(t, tight.Fork(0, 1))
	require.ErrorContains(t, tight.Append(short(1, 0), short(1, 0)), "KVCache: pages = 1: are needed, and 0 of 3 are free")
	require.ErrorContains(t, tight.Evict(0, 0, 1), "KVCache: pages = 2: are needed, and 0 of 3 are free")
	require.NoError(t, tight.Remove(1))
	require.NoError(t, tight.Evict(0, 0, 1))

	att := nn.NewMultiHeadAttention(1)
	for want, change := range map[string]func(){
		"MultiHeadAttention.Rotary = given":            func() { att.Rotary = rotary },
		"MultiHeadAttention.UseFlashAttention = false": func() { att.UseFlashAttention = false },
	} {
		att.Rotary, att.UseFlashAttention = nil, true
		change()
		s := inference(t)
		att.Decode(s, x, x, x, c)
		require.ErrorContains(t, s.Err(), want)
	}

	eights, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 2, Heads: 1, Capacity: 8, Dim: 6, DType: flashkit.Int8})
	require.NoError(t, err)
	att.UseFlashAttention, att.SharedPrefix = true, true
	s := inference(t)
	att.Decode(s, x, x, x, eights)
	require.ErrorContains(t, s.Err(), "MultiHeadAttention.SharedPrefix = true: does not support a cache of i8")
	require.Equal(t, []int32{0, 0}, eights.Lens())
}

// Warm operations allocate nothing, copies of shared pages included.
func TestKVCacheAllocates(t *testing.T) {
	for name, config := range cacheConfigs(t) {
		c, err := nn.NewKVCache(config)
		require.NoError(t, err)
		features := config.Heads * config.Dim
		x := nn.NewTensor(make([]float32, 5*3*features), 5, 3, features)
		x.Lens = []int32{3, 1, 0, 2, 3}
		require.Zero(t, allocs.PerRun(20, func() {
			for _, err := range [...]error{c.Append(x, x), c.Fork(0, 2), c.Append(x, x), c.Evict(2, 1, 2), c.Append(x, x),
				c.Truncate(0, 2), c.Remove(1)} {
				if err != nil {
					t.Fatal(name, err)
				}
			}
			_ = c.Sequences()
			c.Reset()
		}), name)
	}
}
