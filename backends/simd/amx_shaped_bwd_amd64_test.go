//go:build !purego

package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
)

// shapedDots gives the results of the separate routines for products and score features. Results
// may differ by the error of the softcap's exponentials.
func TestShapedDots(t *testing.T) {
	if reason := amxbf16().missing(); reason != "" {
		t.Skip(reason)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for range 500 {
		x := newShaping(r)
		rows := x.keys + x.keys%2
		n, step := rows*pairLanes, pairLanes*r.IntN(3)
		var bias, given []float32
		var inBF16 []uint16
		if x.bias != nil {
			bias, inBF16 = make([]float32, (rows-1)*step+pairLanes), make([]uint16, (rows-1)*step+pairLanes)
			for i := range bias {
				inBF16[i] = half.ToBF16(float32(r.NormFloat64()))
				bias[i] = half.FromBF16(inBF16[i])
			}
			if given = bias; r.IntN(2) == 0 {
				given = nil
			} else {
				inBF16 = nil
			}
		}
		want, wantUncap := make([]float32, upToTiles(x.keys)*pairLanes), make([]float32, n)
		scoresAMXBF16(&want[0], &x.k[0], x.step, &x.q[0], x.words, x.keys, &x.top[0])
		scoreModAVX512(&want[0], pairLanes, rows, &x.top[0], &wantUncap[0], x.scale, x.softcap, first(bias), step, first(x.lanes), x.slope, x.at)
		got, softcapGrad := newFenced(len(want)), newFenced(n)
		shapedDotsAMXBF16(&got.x[0], &x.k[0], x.step, &x.q[0], x.words, x.keys, &softcapGrad.x[0], x.scale, x.softcap, first(given), first(inBF16), step, first(x.lanes), x.slope, x.at)
		name := fmt.Sprintf("%d words, %d keys, scale %g, softcap %g, slope %g, bias %v, in bf16 %v", x.words, x.keys, x.scale, x.softcap, x.slope, bias != nil, inBF16 != nil)
		got.requireFence(t, 1, 1)
		softcapGrad.requireFence(t, 1, 1)
		if x.softcap == 0 {
			require.Equal(t, bitsOf(want[:n]), bitsOf(got.x[:n]), name)
			continue
		}
		for i, y := range want[:n] {
			bound := 4e-7 * float64(x.softcap)
			if bias != nil { // got and want may each round the sum of capped score and bias
				b := bias[i/pairLanes*step+i%pairLanes]
				bound += 0x1p-23 * (float64(x.softcap) + math.Abs(float64(b)))
			}
			if x.lanes != nil { // got and want may each round the difference of score and ALiBi
				bound += 0x1p-23 * math.Abs(float64(y))
			}
			requireNear(t, y, got.x[i], bound, name)
			requireNear(t, wantUncap[i], softcapGrad.x[i], 2e-6*math.Abs(float64(wantUncap[i]))+1e-37, name)
		}
	}
}

func requireNear(t *testing.T, want, got float32, bound float64, name string) {
	t.Helper()
	if want != want {
		require.True(t, got != got, name)
		return
	}
	require.True(t, want == got || math.Abs(float64(want-got)) <= bound, "%g, want %g: %s", got, want, name)
}

// shapedGradients rounds gradientsOf's result.
func TestShapedGradients(t *testing.T) {
	if reason := avx512bf16.missing(); reason != "" {
		t.Skip(reason)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	numbers := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	for range 300 {
		pairs, step := 1+r.IntN(20), pairLanes+2*r.IntN(9)
		n := 2 * pairs
		s, dp, lse, delta := numbers(n*pairLanes), numbers(n*pairLanes), numbers(n), numbers(n)
		masks, kept, softcapGrad := make([]uint32, n), make([]uint32, n), numbers(n*pairLanes)
		for i := range masks {
			masks[i], kept[i] = []uint32{0, ^uint32(0), r.Uint32()}[r.IntN(3)], r.Uint32()
			if masks[i] == 0 {
				s[i*pairLanes+r.IntN(pairLanes)] = float32(math.NaN())
			}
		}
		var of *uint32
		var caps *float32
		if kind := r.IntN(3); kind < 2 {
			of = &kept[0]
			if kind == 0 {
				caps = &softcapGrad[0]
			}
		} else {
			caps = &softcapGrad[0]
		}
		p, ds, rows := make([]uint32, pairs*pairLanes), make([]uint32, pairs*pairLanes), make([]uint16, n*step)
		shapedGradientsAMXBF16(&p[0], &ds[0], &rows[0], step, &s[0], &dp[0], &masks[0], pairs, &lse[0], &delta[0], .5, of, 1.25, caps)
		wide := make([]float32, n*step)
		wantP, wantDS, wantRows := make([]uint32, len(p)), make([]uint32, len(ds)), make([]uint16, len(rows))
		avx512Lanes.gradientsOf(&s[0], &dp[0], &wide[0], step, &masks[0], n, &lse[0], &delta[0], .5, 1, of, 1.25, caps, nil)
		narrowPairsAVX512BF16(&wantP[0], &s[0], pairLanes, pairs)
		narrowPairsAVX512BF16(&wantDS[0], &wide[0], step, pairs)
		narrowRowsAVX512BF16(&wantRows[0], &wide[0], step, n)
		require.Equal(t, wantP, p)
		require.Equal(t, wantDS, ds)
		require.Equal(t, wantRows, rows)
	}
}
