package nn_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/nn"
)

// Attention in bf16 equals float32 attention of the rounded q, k and v, up to the rounding of the
// weights and of the result. It reads views with gaps between rows, packed and padded sequences, and
// changes none of its inputs.
func TestAttentionInBF16(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 2))
	for _, rows := range []nn.Rows{nn.Packed([]int32{0, 70, 70, 75}), nn.Padded(25, []int32{25, 3, 0}), {Batch: 3, T: 25}, {Batch: 3, T: 25, TimeFirst: true}} {
		const heads, d = 4, 24
		all := random(r, 1, 75, heads*d*2)
		all.Rows = rows
		q, k, v := all.Columns(0, heads*d), all.Columns(heads*d, heads*d/2), all.Columns(heads*d*3/2, heads*d/2)
		before := slices.Clone(all.Data)
		m := nn.NewMultiHeadAttention(heads)
		m.KVHeads = heads / 2
		forward := func(s *nn.Step, p nn.Precision, bias []float32) []float32 {
			m.Precision = p
			var y nn.Tensor
			if bias == nil {
				y = m.Forward(s, q, k, v)
			} else {
				y = m.ForwardBias(s, q, k, v, bias)
			}
			require.NoError(t, s.Err())
			return y.Data
		}
		for _, bias := range [][]float32{nil, randoms(r, heads*rows.T*rows.T)} {
			got := slices.Clone(forward(inference(t), nn.BF16, bias))
			require.Equal(t, before, all.Data)
			exact := slices.Clone(forward(inference(t), nn.Float32, bias))
			copy(all.Data, roundedToBF16(all.Data))
			want := forward(inference(t), nn.Float32, bias)
			copy(all.Data, before)
			largest := 0.0
			for i := range want {
				largest = max(largest, float64(max(want[i], -want[i])))
			}
			near(t, "bf16", want, got, largest*0x1p-7)
			require.Equal(t, roundedToBF16(got), got)
			require.NotEqual(t, exact, got)
		}
		s := inference(t)
		forward(s, nn.BF16, nil)
		if ctx := t.Context(); !allocates {
			require.Zero(t, allocs.PerRun(20, func() {
				s.Begin(ctx)
				m.Forward(s, q, k, v)
			}))
		}
	}
}

// What Precision BF16 does not support is refused by name.
func TestAttentionInBF16Refuses(t *testing.T) {
	x := random(rand.New(rand.NewPCG(1, 1)), 1, 3, 8)
	cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 1, Heads: 2, Capacity: 8, Dim: 4})
	require.NoError(t, err)
	for message, run := range map[string]func(m *nn.MultiHeadAttention, s *nn.Step){
		"Precision = 1: must be Float32 or BF16":    func(m *nn.MultiHeadAttention, s *nn.Step) { m.Precision = nn.BF16Weights; m.Forward(s, x, x, x) },
		"UseFlashAttention = false: must be true":   func(m *nn.MultiHeadAttention, s *nn.Step) { m.UseFlashAttention = false; m.Forward(s, x, x, x) },
		"Precision = 2: must be Float32 for Decode": func(m *nn.MultiHeadAttention, s *nn.Step) { m.Decode(s, x, x, x, cache) },
		"Precision BF16 is for inference": func(m *nn.MultiHeadAttention, s *nn.Step) {
			s.BeginTraining(context.Background(), 1, 1)
			m.Forward(s, x, x, x)
		},
	} {
		m, s := nn.NewMultiHeadAttention(2), inference(t)
		m.Precision = nn.BF16
		run(m, s)
		require.ErrorContains(t, s.Err(), message)
	}
}
