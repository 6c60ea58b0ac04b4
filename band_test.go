package flashkit_test

import (
	"math"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

// sees is the definition of Band, in differences that cannot overflow.
func sees(p flashkit.Problem, i, j int) bool {
	i += p.Band.Shifted()
	if !p.Band.IsTopLeft() {
		i += p.KVLen - p.QLen
	}
	left, right := p.Band.Left(), p.Band.Right()
	return (left == flashkit.Unlimited || i-j <= left) && (right == flashkit.Unlimited || j-i <= right)
}

// everyBand calls f with every problem of short lengths and every band that
// tells them apart, in both alignments, and moved.
func everyBand(f func(p flashkit.Problem)) {
	sides := []int{flashkit.Unlimited, 0, 1, 2, 4, 9, math.MaxInt - 1, math.MaxInt}
	shifts := []int{0, 1, -2, 8, math.MaxInt / 8, -math.MaxInt / 8}
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, Dim: 1, VDim: 1}
	for p.QLen = range 6 {
		for p.KVLen = range 7 {
			for _, left := range sides {
				for _, right := range sides {
					for _, shift := range shifts {
						p.Band = flashkit.Window(left, right).Shift(shift)
						f(p)
						p.Band = p.Band.TopLeft()
						f(p)
					}
				}
			}
		}
	}
}

// requireRange checks that [lo, hi) holds exactly the n numbers that in accepts.
func requireRange(t *testing.T, p flashkit.Problem, what string, lo, hi, n int, in func(int) bool) {
	t.Helper()
	if lo < 0 || lo > hi || hi > n {
		t.Fatalf("%v: %s from %d to %d, want within [0, %d)", p, what, lo, hi, n)
	}
	for x := range n {
		if in(x) != (lo <= x && x < hi) {
			t.Fatalf("%v: %s from %d to %d, but %d: %t", p, what, lo, hi, x, in(x))
		}
	}
}

func TestKeysAndQueriesAreTheDefinition(t *testing.T) {
	everyBand(func(p flashkit.Problem) {
		for i := range p.QLen {
			lo, hi := p.Keys(i)
			requireRange(t, p, "keys", lo, hi, p.KVLen, func(j int) bool { return sees(p, i, j) })
		}
		for j := range p.KVLen {
			lo, hi := p.Queries(j)
			requireRange(t, p, "queries", lo, hi, p.QLen, func(i int) bool { return sees(p, i, j) })
		}
	})
}

func TestKeysAndQueriesNeverDecrease(t *testing.T) {
	everyBand(func(p flashkit.Problem) {
		for what, of := range map[string]struct {
			f func(int) (int, int)
			n int
		}{"keys": {p.Keys, p.QLen}, "queries": {p.Queries, p.KVLen}} {
			lastLo, lastHi := 0, 0
			for x := range of.n {
				lo, hi := of.f(x)
				if lo < lastLo || hi < lastHi {
					t.Fatalf("%v: %s of %d from %d to %d, after %d to %d", p, what, x, lo, hi, lastLo, lastHi)
				}
				lastLo, lastHi = lo, hi
			}
		}
	})
}

func TestKeysAndQueriesAreTransposes(t *testing.T) {
	everyBand(func(p flashkit.Problem) {
		for i := range p.QLen {
			for j := range p.KVLen {
				kLo, kHi := p.Keys(i)
				qLo, qHi := p.Queries(j)
				if (kLo <= j && j < kHi) != (qLo <= i && i < qHi) {
					t.Fatalf("%v: row %d and key %d disagree", p, i, j)
				}
			}
		}
	})
}

func TestKeysOfHugeProblems(t *testing.T) {
	const n = math.MaxInt / 4 // the longest length there is
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: n, KVLen: 1, Dim: 1, VDim: 1, Band: flashkit.Causal()}
	require.NoError(t, p.Validate())
	lo, hi := p.Keys(n - 2)
	require.Equal(t, [2]int{0, 0}, [2]int{lo, hi})
	lo, hi = p.Keys(n - 1)
	require.Equal(t, [2]int{0, 1}, [2]int{lo, hi})
	lo, hi = p.Queries(0)
	require.Equal(t, [2]int{n - 1, n}, [2]int{lo, hi})

	p.QLen, p.KVLen, p.Band = 1, n, flashkit.Window(2, math.MaxInt)
	lo, hi = p.Keys(0)
	require.Equal(t, [2]int{n - 3, n}, [2]int{lo, hi})
	p.Band = p.Band.TopLeft()
	lo, hi = p.Keys(0)
	require.Equal(t, [2]int{0, n}, [2]int{lo, hi})
}

func TestBand(t *testing.T) {
	require.Equal(t, flashkit.Band{}, flashkit.Window(flashkit.Unlimited, flashkit.Unlimited))
	require.Equal(t, flashkit.Causal(), flashkit.Window(flashkit.Unlimited, 0))
	require.NotEqual(t, flashkit.Causal(), flashkit.Causal().TopLeft())
	for _, n := range []int{math.MinInt, -2, flashkit.Unlimited, 0, 1, math.MaxInt - 1, math.MaxInt} {
		b := flashkit.Window(n, 3)
		require.Equal(t, [2]int{n, 3}, [2]int{b.Left(), b.Right()})
		b = flashkit.Window(3, n).TopLeft()
		require.Equal(t, [2]int{3, n}, [2]int{b.Left(), b.Right()})
		require.True(t, b.IsTopLeft())
	}
}
