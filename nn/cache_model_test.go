package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn"
)

// A cacheRow is a row of the model of a KVCache: keys and values as stored, and the position.
type cacheRow struct {
	k, v     []float32
	position int32
}

// A cacheModel is a KVCache beside its plain model, a list of rows for each sequence.
type cacheModel struct {
	config nn.KVCacheConfig
	cache  *nn.KVCache
	rows   [][]cacheRow
	next   []int32
	step   *nn.Step
	data   *rand.Rand

	prefixes int // number of decodes with a shared prefix
}

func newCacheModel(t *testing.T, config nn.KVCacheConfig, step *nn.Step) *cacheModel {
	cache, err := nn.NewKVCache(config)
	require.NoError(t, err)
	return &cacheModel{config, cache, make([][]cacheRow, config.Batch), make([]int32, config.Batch), step, rand.New(rand.NewPCG(7, 8)), 0}
}

// stored returns x as the cache stores it.
func (m *cacheModel) stored(t *testing.T, x []float32) []float32 {
	switch m.config.DType {
	case flashkit.Int8:
		return m.quantized(t, x)
	case flashkit.Float16:
		return flashkit.ToF32(flashkit.F16(flashkit.ToF16(x), 1, 1, 1, len(x)))
	case flashkit.BFloat16:
		return flashkit.ToF32(flashkit.BF16(flashkit.ToBF16(x), 1, 1, 1, len(x)))
	}
	return slices.Clone(x)
}

// quantized returns a row as an Int8 cache stores it, multiplied by its scales.
func (m *cacheModel) quantized(t *testing.T, x []float32) []float32 {
	heads, dim := m.config.Heads, m.config.Dim
	n := 1
	if m.config.Int8Group > 0 {
		n = (dim-1)/m.config.Int8Group + 1
	}
	codes, scales := flashkit.Zeros(flashkit.Int8, 1, heads, 1, dim), flashkit.Zeros(m.config.Scales, 1, heads, 1, n)
	require.NoError(t, flashkit.QuantizeRows(codes, scales, flashkit.F32(x, 1, heads, 1, dim), nil, nil))
	return dequantized(codes, scales)
}

// dequantized returns codes multiplied by their scales, or codes alone without scales.
func dequantized(codes, scales flashkit.Tensor) []float32 {
	y, s, dim := flashkit.ToF32(codes), flashkit.ToF32(scales), codes.Shape()[3]
	if n := scales.Shape()[3]; n > 0 {
		group := dim
		if n > 1 {
			group = 32
		}
		for i := range y {
			y[i] *= s[i/dim*n+i%dim/group]
		}
	}
	return y
}

// pages returns the page table's entries in use, by sequence.
func (m *cacheModel) pages(b int) []int32 {
	table := m.cache.Sequences().Pages
	w := len(table) / m.config.Batch
	return table[b*w:][:(len(m.rows[b])+m.config.Page-1)/m.config.Page]
}

// uses returns the number of sequences that use a page.
func (m *cacheModel) uses(page int32) (n int) {
	for b := range m.rows {
		if slices.Contains(m.pages(b), page) {
			n++
		}
	}
	return n
}

// An ints returns numbers from 0 to n-1: of a random source, or of a fuzzer's bytes.
type ints interface{ IntN(n int) int }

// apply runs one operation on the cache and on the model.
func (m *cacheModel) apply(t *testing.T, r ints) {
	b := r.IntN(m.config.Batch)
	n := len(m.rows[b])
	switch r.IntN(12) {
	case 0:
		require.NoError(t, m.cache.Remove(b))
		m.rows[b], m.next[b] = nil, 0
	case 1, 2:
		if keep := n - r.IntN(min(n, 9)+1); keep < n {
			require.NoError(t, m.cache.Truncate(b, keep))
			m.next[b] = m.rows[b][keep].position
			m.rows[b] = slices.Clone(m.rows[b][:keep])
		} else {
			require.NoError(t, m.cache.Truncate(b, keep))
		}
	case 3: // the prompt of all sequences
		for to := range m.rows {
			require.NoError(t, m.cache.Fork(b, to))
			m.rows[to], m.next[to] = slices.Clone(m.rows[b]), m.next[b]
		}
	case 4:
		to := r.IntN(m.config.Batch)
		require.NoError(t, m.cache.Fork(b, to))
		m.rows[to], m.next[to] = slices.Clone(m.rows[b]), m.next[b]
	case 5, 6:
		from := r.IntN(n + 1)
		m.evict(t, b, from, from+r.IntN(n-from+1))
	default:
		m.append(t, r)
	}
}

func (m *cacheModel) evict(t *testing.T, b, from, to int) {
	shared := 0
	if m.config.Page > 0 {
		for _, page := range m.pages(b) {
			if m.uses(page) > 1 {
				shared++
			}
		}
	}
	if err := m.cache.Evict(b, from, to); err != nil {
		require.Greater(t, shared, m.cache.FreePages(), "%v", err)
		return
	}
	m.rows[b] = slices.Delete(slices.Clone(m.rows[b]), from, to)
}

// append adds up to 5 rows to each sequence, padded or packed.
func (m *cacheModel) append(t *testing.T, r ints) {
	const most = 5
	features, packed := m.config.Heads*m.config.Dim, r.IntN(2) == 0
	lens, starts := make([]int32, m.config.Batch), make([]int32, m.config.Batch+1)
	fits, pages := true, 0
	for b := range lens {
		lens[b] = int32(max(0, r.IntN(2*most)-most+1))
		starts[b+1] = starts[b] + lens[b]
		n := len(m.rows[b])
		fits = fits && n+int(lens[b]) <= m.config.Capacity
		if m.config.Page > 0 {
			pages += (n+int(lens[b])+m.config.Page-1)/m.config.Page - (n+m.config.Page-1)/m.config.Page
			if lens[b] > 0 && n%m.config.Page != 0 && m.uses(m.pages(b)[n/m.config.Page]) > 1 {
				pages++ // at most: the last sequence to write needs no copy
			}
		}
	}
	rows := nn.Padded(most, lens)
	if packed {
		rows = nn.Packed(starts)
	}
	k := nn.Tensor{Data: randoms(m.data, rows.Count()*features), Features: features, Rows: rows}
	v := nn.Tensor{Data: randoms(m.data, rows.Count()*features), Features: features, Rows: rows}
	free := m.cache.FreePages()
	if err := m.cache.Append(k, v); err != nil {
		require.True(t, !fits || pages > free, "%v", err)
		require.Equal(t, free, m.cache.FreePages())
		return
	}
	require.True(t, fits)
	if m.config.Rotary != nil {
		m.step.Begin(t.Context())
		k = m.config.Rotary.ForwardFrom(m.step, k, m.config.Heads, m.next)
		require.NoError(t, m.step.Err())
	}
	for b := range lens {
		for i := range int(lens[b]) {
			at := b*most + i
			if packed {
				at = int(starts[b]) + i
			}
			m.rows[b] = append(m.rows[b], cacheRow{m.stored(t, k.Row(at)), m.stored(t, v.Row(at)), m.next[b]})
			m.next[b]++
		}
	}
}

// compare reads the whole cache and compares it with the model.
func (m *cacheModel) compare(t *testing.T) {
	k, v := m.cache.View()
	kScale, vScale := m.cache.Scales()
	kAll, vAll, used := dequantized(k, kScale), dequantized(v, vScale), map[int32]bool{}
	dim := m.config.Dim
	for b, rows := range m.rows {
		require.Equal(t, int32(len(rows)), m.cache.Lens()[b])
		require.Equal(t, m.next[b], m.cache.Next()[b])
		require.Len(t, m.cache.Positions(b), len(rows))
		for i, row := range rows {
			batch, at := b, i
			if m.config.Page > 0 {
				page := m.pages(b)[i/m.config.Page]
				batch, at, used[page] = int(page), i%m.config.Page, true
			}
			if row.position != m.cache.Positions(b)[i] {
				t.Fatalf("position of row %d of sequence %d", i, b)
			}
			for h := range m.config.Heads {
				if !slices.Equal(row.k[h*dim:][:dim], kAll[k.Offset(batch, h, at):][:dim]) || !slices.Equal(row.v[h*dim:][:dim], vAll[v.Offset(batch, h, at):][:dim]) {
					t.Fatalf("row %d of head %d of sequence %d", i, h, b)
				}
			}
		}
	}
	if m.config.Page > 0 {
		require.Equal(t, k.Shape()[0], len(used)+m.cache.FreePages())
	}
}

// decode runs a call over the cache, and compares it with float64 over the model.
func (m *cacheModel) decode(t *testing.T, d *dispatch.Dispatcher) {
	heads, dim := 2*m.config.Heads, m.config.Dim
	q, o := randoms(m.data, m.config.Batch*heads*dim), make([]float32, m.config.Batch*heads*dim)
	k, v := m.cache.View()
	seqs := m.cache.Sequences()
	args := &flashkit.Args{Q: flashkit.F32(q, m.config.Batch, heads, 1, dim), K: k, V: v, O: flashkit.F32(o, m.config.Batch, heads, 1, dim), Seqs: &seqs}
	args.KScale, args.VScale = m.cache.Scales()
	p := flashkit.ProblemOf(args, flashkit.Causal())
	require.Equal(t, m.config.Capacity, p.KVLen)
	require.NoError(t, d.Forward(t.Context(), p, args))
	m.attends(t, q, o)

	for i := range o {
		o[i] = float32(math.NaN())
	}
	prefix, others := m.cache.Prefix()
	args.Seqs = &others
	p.KVLen -= prefix.Len
	m.prefixes += min(1, prefix.Len)
	if m.config.DType == flashkit.Int8 {
		require.ErrorContains(t, d.ForwardPrefix(t.Context(), p, &prefix, args), "int8group")
		return
	}
	require.NoError(t, d.ForwardPrefix(t.Context(), p, &prefix, args))
	m.attends(t, q, o)
}

// attends compares the output o of queries q with float64 over the model.
func (m *cacheModel) attends(t *testing.T, q, o []float32) {
	heads, dim, group := 2*m.config.Heads, m.config.Dim, 2
	for b, rows := range m.rows {
		for h := range heads {
			g, sum, want := h/group*dim, 0.0, make([]float64, dim)
			for _, row := range rows {
				score := 0.0
				for i, x := range q[(b*heads+h)*dim:][:dim] {
					score += float64(x) * float64(row.k[g+i])
				}
				w := math.Exp(score / math.Sqrt(float64(dim)))
				sum += w
				for i := range want {
					want[i] += w * float64(row.v[g+i])
				}
			}
			for i, w := range want {
				if len(rows) > 0 {
					w /= sum
				}
				require.InDelta(t, w, o[(b*heads+h)*dim+i], 1e-5)
			}
		}
	}
}

// cacheConfigs are caches of each form.
func cacheConfigs(t testing.TB) map[string]nn.KVCacheConfig {
	rotary, err := nn.NewRotary(1<<20, 6, 10000, false)
	require.NoError(t, err)
	all := map[string]nn.KVCacheConfig{}
	for name, c := range map[string]nn.KVCacheConfig{
		"f32": {Dim: 8}, "f16": {Dim: 8, DType: flashkit.Float16}, "bf16": {Dim: 8, DType: flashkit.BFloat16},
		"i8": {Dim: 8, DType: flashkit.Int8}, "i8group32": {Dim: 40, DType: flashkit.Int8, Int8Group: 32, Scales: flashkit.Float16},
	} {
		for _, page := range []int{0, 1, 4, 8} {
			c.Batch, c.Heads, c.Capacity, c.Page, c.Pages, c.Rotary = 5, 2, 40, page, 0, nil
			all[fmt.Sprintf("%s/page%d", name, page)] = c
			if c.Rotary = rotary; page > 0 {
				c.Pages = 100 / page // half of the pages of full sequences
			}
			all[fmt.Sprintf("%s/page%d/tight", name, page)] = c
		}
	}
	return all
}

// Thousands of random operations leave the rows of the model in the cache, and a decode reads them.
func TestKVCacheModel(t *testing.T) {
	d := dispatch.New(simd.New()).Frozen()
	defer d.Close()
	for name, config := range cacheConfigs(t) {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			m := newCacheModel(t, config, engine.NewStep())
			for n := range 2000 {
				m.apply(t, r)
				if n%5 == 0 {
					m.compare(t)
				}
				if n%40 == 0 {
					m.decode(t, d)
				}
			}
			m.compare(t)
			require.Equal(t, config.Page > 0, m.prefixes > 0)
			m.cache.Reset()
			m.rows, m.next = make([][]cacheRow, config.Batch), make([]int32, config.Batch)
			m.compare(t)
		})
	}
}

// fuzzed takes numbers from bytes, and 0 after their end.
type fuzzed struct{ data []byte }

func (f *fuzzed) IntN(n int) int {
	if len(f.data) == 0 {
		return 0
	}
	x := int(f.data[0])
	f.data = f.data[1:]
	return x % n
}

func FuzzKVCache(f *testing.F) {
	f.Add(uint8(0), []byte{0, 7, 0, 1, 9, 9, 9, 9, 9, 0, 3, 1, 0, 5, 2, 9})
	f.Add(uint8(9), []byte{1, 8, 1, 9, 9, 9, 9, 9, 1, 3, 2, 2, 8, 0, 9, 9, 9, 9, 9, 1, 6, 3, 4})
	configs := cacheConfigs(f)
	var names []string
	for name := range configs {
		names = append(names, name)
	}
	slices.Sort(names)
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		m, r := newCacheModel(t, configs[names[int(which)%len(names)]], engine.NewStep()), &fuzzed{data}
		for len(r.data) > 0 {
			m.apply(t, r)
			m.compare(t)
		}
	})
}
