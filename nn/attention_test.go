package nn_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
)

// layouts returns layouts of three sequences of at most 7 rows, each for queries and for keys.
func layouts() map[string][2]nn.Rows {
	return map[string][2]nn.Rows{
		"dense":        {{Batch: 3, T: 7}, {Batch: 3, T: 9}},
		"time first":   {{Batch: 3, T: 7, TimeFirst: true}, {Batch: 3, T: 9, TimeFirst: true}},
		"mixed":        {{Batch: 3, T: 7, TimeFirst: true}, nn.Packed([]int32{0, 4, 4, 9})},
		"padded":       {nn.Padded(7, []int32{7, 0, 3}), nn.Padded(9, []int32{9, 5, 2})},
		"padded, time": {{Batch: 3, T: 7, Lens: []int32{7, 0, 3}, TimeFirst: true}, nn.Padded(9, []int32{9, 5, 0})},
		"padded keys":  {{Batch: 3, T: 7}, nn.Padded(9, []int32{9, 5, 0})},
		"packed":       {nn.Packed([]int32{0, 7, 7, 10}), nn.Packed([]int32{0, 9, 14, 15})},
		"no rows":      {{Batch: 3, T: 0}, {Batch: 3, T: 9}},
		"no keys":      {{Batch: 3, T: 7}, {Batch: 3, T: 0}},
		"no sequences": {{Batch: 0, T: 7}, {Batch: 0, T: 9}},
	}
}

// Flash and plain attention agree in both passes, for every layout, mask and dropout. Padding has
// no influence and gets 0.
func TestFlashAndPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, rows := range layouts() {
		for _, causal := range []bool{false, true} {
			for _, dropout := range []float32{0, .4} {
				t.Run(fmt.Sprintf("%s/causal=%v/dropout=%v", name, causal, dropout), func(t *testing.T) {
					m := nn.NewMultiHeadAttention(4)
					m.KVHeads, m.Causal, m.Dropout = 2, causal, dropout
					m.Rotary, _ = nn.NewRotary(20, 6, 10000, causal)
					q := random(r, 1, rows[0].Count(), 4*6)
					k, v := random(r, 1, rows[1].Count(), 2*6), random(r, 1, rows[1].Count(), 2*5)
					q.Rows, k.Rows, v.Rows = rows[0], rows[1], rows[1]
					dy := random(r, 1, rows[0].Count(), 4*5)
					dy.Rows = rows[0]
					both := func(flash bool) [][]float32 {
						m.UseFlashAttention = flash
						s := training(t)
						y := m.Forward(s, q, k, v)
						dq, dk, dv := m.Backward(s, dy)
						require.NoError(t, s.Err())
						list := [][]float32{y.Data, dq.Data, dk.Data, dv.Data}
						for i := range list {
							list[i] = append([]float32(nil), list[i]...)
						}
						return list
					}
					want := both(false)
					for i := range want {
						near(t, fmt.Sprintf("result %d", i), want[i], both(true)[i], 1e-5)
					}
					if rows[0].Lens != nil {
						for _, row := range padding(rows[0]) {
							require.Equal(t, make([]float32, 4*5), want[0][row*4*5:][:4*5], "row %d of the output", row)
							require.Equal(t, make([]float32, 4*6), want[1][row*4*6:][:4*6], "row %d of dq", row)
						}
						poison(&q)
						poison(&k)
						poison(&v)
						poison(&dy)
						for _, flash := range []bool{true, false} {
							for i, x := range both(flash) {
								near(t, fmt.Sprintf("result %d with NaN in the padding", i), want[i], x, 1e-5)
							}
						}
					}
				})
			}
		}
	}
}

// padding returns the rows of the padding.
func padding(r nn.Rows) (list []int) {
	for b := range r.Batch {
		for i := int(r.Lens[b]); i < r.T; i++ {
			if r.TimeFirst {
				list = append(list, i*r.Batch+b)
			} else {
				list = append(list, b*r.T+i)
			}
		}
	}
	return list
}

// poison writes NaN to the padding.
func poison(x *nn.Tensor) {
	for _, i := range padding(x.Rows) {
		for j := range x.Row(i) {
			x.Row(i)[j] = float32(math.NaN())
		}
	}
}

// A packed sequence gets the same bits as alone, through a whole model.
func TestPackedAlone(t *testing.T) {
	m := newModel(t, tiny)
	tokens := someTokens(rand.New(rand.NewPCG(3, 4)), 1, 20, 11)
	starts := []int32{0, 8, 8, 20}
	for _, flash := range []bool{true, false} {
		m.UseFlashAttention(flash)
		s := inference(t)
		all := m.Forward(s, nn.Tokens{IDs: tokens.IDs, Rows: nn.Packed(starts)})
		require.NoError(t, s.Err())
		for b := range 3 {
			alone := inference(t)
			n := int(starts[b+1] - starts[b])
			one := m.Forward(alone, nn.NewTokens(tokens.IDs[starts[b]:starts[b+1]], 1, n))
			require.NoError(t, alone.Err())
			near(t, "logits", one.Data, all.Data[int(starts[b])*11:][:n*11], 1e-6)
		}
	}
}

func TestForwardWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	m := nn.NewMultiHeadAttention(2)
	m.Causal = true
	q, k, v := random(r, 2, 3, 8), random(r, 2, 5, 8), random(r, 2, 5, 4)
	s := inference(t)
	m.ForwardWeights(s, q, k, v)
	require.ErrorContains(t, s.Err(), "UseFlashAttention")

	m.UseFlashAttention = false
	s.Begin(t.Context())
	y, weights := m.ForwardWeights(s, q, k, v)
	require.NoError(t, s.Err())
	require.Len(t, weights, 2*2*3*5)
	for b := range 2 {
		for h := range 2 {
			for i := range 3 {
				w, sum, o := weights[((b*2+h)*3+i)*5:][:5], 0.0, [2]float64{}
				for j, p := range w {
					require.Equal(t, j > i+2, p == 0, "the last row sees every key")
					sum += float64(p)
					for c := range o {
						o[c] += float64(p) * float64(v.Row(b*5 + j)[h*2+c])
					}
				}
				require.InDelta(t, 1, sum, 1e-6)
				for c := range o {
					require.InDelta(t, o[c], y.Row(b*3 + i)[h*2+c], 1e-6)
				}
			}
		}
	}
}

// q, k and v may be views of the columns of one projection.
func TestColumns(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	m := nn.NewMultiHeadAttention(2)
	qkv := random(r, 2, 6, 24)
	var parts [3]nn.Tensor
	for n := range parts {
		parts[n] = nn.NewTensor(nil, 2, 6, 8)
		for i := range 12 {
			parts[n].Data = append(parts[n].Data, qkv.Row(i)[n*8:][:8]...)
		}
	}
	for _, flash := range []bool{true, false} {
		m.UseFlashAttention = flash
		a, b := inference(t), inference(t)
		want, got := m.Forward(a, parts[0], parts[1], parts[2]), m.Forward(b, qkv.Columns(0, 8), qkv.Columns(8, 8), qkv.Columns(16, 8))
		require.NoError(t, b.Err())
		require.Equal(t, want.Data, got.Data)
	}
	for _, l := range []layer{nn.NewLayerNorm(nn.Blank(), 8), nn.NewLinear(nn.NewInit(1), 8, 3, true), nn.GELU, nn.ReLU} {
		a, b := training(t), training(t)
		require.Equal(t, l.Forward(a, parts[1]).Data, l.Forward(b, qkv.Columns(8, 8)).Data)
		require.NoError(t, b.Err())
	}
}
