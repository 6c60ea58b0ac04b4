package nn_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
)

// ForwardBias equals attention in float64 over packed sequences, one of them without rows.
func TestForwardBias(t *testing.T) {
	const heads, d, e = 4, 6, 5
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	starts, keys := []int32{0, 7, 7, 10}, []int32{0, 9, 14, 15}
	q, k, v := random(r, 1, 10, heads*d), random(r, 1, 15, 2*d), random(r, 1, 15, 2*e)
	q.Rows, k.Rows, v.Rows = nn.Packed(starts), nn.Packed(keys), nn.Packed(keys)
	bias := random(r, 1, heads*7, 9).Data
	m, s := nn.NewMultiHeadAttention(heads), inference(t)
	m.KVHeads = 2
	got := m.ForwardBias(s, q, k, v, bias)
	require.NoError(t, s.Err())
	for b := range 3 {
		for i := range int(starts[b+1] - starts[b]) {
			for h := range heads {
				want, sum := make([]float64, e), 0.0
				for j := range int(keys[b+1] - keys[b]) {
					score := float64(bias[(h*7+i)*9+j])
					kr, vr := k.Row(int(keys[b]) + j)[h/2*d:], v.Row(int(keys[b]) + j)[h/2*e:]
					for c, x := range q.Row(int(starts[b]) + i)[h*d:][:d] {
						score += float64(x) * float64(kr[c]) / math.Sqrt(d)
					}
					sum += math.Exp(score)
					for c := range want {
						want[c] += math.Exp(score) * float64(vr[c])
					}
				}
				for c := range want {
					require.InDelta(t, want[c]/sum, got.Row(int(starts[b]) + i)[h*e+c], 1e-5)
				}
			}
		}
	}
	m.ForwardBias(s, q, k, v, bias[1:])
	require.ErrorContains(t, s.Err(), "bias.len = 251")
	s = inference(t)
	m.UseFlashAttention = false
	m.ForwardBias(s, q, k, v, bias)
	require.ErrorContains(t, s.Err(), "without Rotary")
}
