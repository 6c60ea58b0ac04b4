package flashkit_test

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

func TestAreaCountsPairs(t *testing.T) {
	everyBand(func(p flashkit.Problem) {
		var want int64
		for i := range p.QLen {
			for j := range p.KVLen {
				if sees(p, i, j) {
					want++
				}
			}
		}
		if got := p.Area(); got != want {
			t.Fatalf("%v: area %d, want %d", p, got, want)
		}
	})
}

// lengths returns a problem that is nothing but its lengths and mask.
func lengths(n, m int, mask flashkit.Band) flashkit.Problem {
	return flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: n, KVLen: m, Dim: 1, VDim: 1, Band: mask}
}

func TestAreaOfHugeProblems(t *testing.T) {
	const n, longest = 1 << 27, math.MaxInt / 4
	triangle := func(n int64) int64 { return n * (n + 1) / 2 }
	for _, c := range []struct {
		p    flashkit.Problem
		want int64
	}{
		{lengths(n, n, flashkit.Band{}), n * n},
		{lengths(n, n, flashkit.Causal()), triangle(n)},
		{lengths(n, 3*n, flashkit.Causal()), 2*n*n + triangle(n)},
		{lengths(3*n, n, flashkit.Causal()), triangle(n)},
		{lengths(3*n, n, flashkit.Causal().TopLeft()), triangle(n) + 2*n*n},
		{lengths(n, 3*n, flashkit.Causal().TopLeft()), triangle(n)},
		{lengths(n, n, flashkit.Window(1000, 0)), 1001*n - triangle(1000)},
		{lengths(n, n, flashkit.Window(0, 0)), n},
		{lengths(n, n, flashkit.Window(math.MaxInt, math.MaxInt)), n * n},
		{lengths(n, n, flashkit.Window(math.MaxInt-1, 0)), triangle(n)},
		{lengths(longest, 1, flashkit.Band{}), longest},
		{lengths(1, longest, flashkit.Window(math.MaxInt, 0)), longest},
		{lengths(1, longest, flashkit.Window(math.MaxInt, 0).TopLeft()), 1},
		{lengths(longest, 1, flashkit.Causal()), 1},
	} {
		require.NoError(t, c.p.Validate())
		require.Equal(t, c.want, c.p.Area(), "%v", c.p)
	}
}

// A pair is hidden on the left or on the right, never on both. Exchanging rows
// and keys exchanges the sides. Both hold for any length.
func TestAreaLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	length := func() int { return r.Int() >> (bits.UintSize/2 + 1 + r.IntN(bits.UintSize/2)) }
	for range 10000 {
		left, right := length(), length()
		p := lengths(length(), length(), flashkit.Band{})
		align := func(b flashkit.Band) flashkit.Band { return b }
		if r.IntN(2) == 0 {
			align = flashkit.Band.TopLeft
		}
		area := func(n, m, left, right int) int64 {
			return lengths(n, m, align(flashkit.Window(left, right))).Area()
		}
		n, m := p.QLen, p.KVLen
		require.NoError(t, p.Validate())
		both := area(n, m, left, right)
		require.Equal(t, int64(n)*int64(m)+both, area(n, m, left, flashkit.Unlimited)+area(n, m, flashkit.Unlimited, right))
		require.Equal(t, both, area(m, n, right, left))
	}
}

func TestFLOPs(t *testing.T) {
	p := flashkit.Problem{Batch: 3, Heads: 4, KVHeads: 2, QLen: 50, KVLen: 70, Dim: 16, VDim: 16}
	require.Equal(t, 4.0*3*4*50*70*16, p.FLOPs(flashkit.PassForward))
	require.Equal(t, 2.5*4*3*4*50*70*16, p.FLOPs(flashkit.PassBackward))

	p.KVLen, p.Band = 50, flashkit.Causal()
	require.Equal(t, 4.0*3*4*(50*51/2)*16, p.FLOPs(flashkit.PassForward))
	require.Equal(t, 2.5*p.FLOPs(flashkit.PassForward), p.FLOPs(flashkit.PassBackward))

	p.VDim = 48 // one product over Dim, one over VDim
	require.Equal(t, 2.0*3*4*(50*51/2)*(16+48), p.FLOPs(flashkit.PassForward))

	p.Batch = 0
	require.Zero(t, p.FLOPs(flashkit.PassBackward))
}

func TestBytes(t *testing.T) {
	// Elements: Q 2*4*3*6 = 144, K 2*2*5*6 = 120, V 2*2*5*7 = 140, O 2*4*3*7 = 168, LSE 2*4*3 = 24.
	p := small()
	require.Equal(t, 4.0*(144+120+140+168+24), p.Bytes(flashkit.PassForward))
	// Q, K, V with their gradients, O, dO and LSE.
	require.Equal(t, 4.0*(2*(144+120+140)+2*168+24), p.Bytes(flashkit.PassBackward))
	p.DType = flashkit.BFloat16 // LSE stays float32
	require.Equal(t, 2.0*(144+120+140+168)+4*24, p.Bytes(flashkit.PassForward))
	require.Equal(t, 2.0*(2*(144+120+140)+2*168)+4*24, p.Bytes(flashkit.PassBackward))
	p.DType, p.KVDType = flashkit.Float32, flashkit.Float16
	require.Equal(t, 4.0*(144+168+24)+2*(120+140), p.Bytes(flashkit.PassForward))
}

func TestPassString(t *testing.T) {
	require.Equal(t, "forward", flashkit.PassForward.String())
	require.Equal(t, "backward", flashkit.PassBackward.String())
}
