package simd_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Extremes are inputs at the ends of float32's range. If the right answer does not depend on the
// order of sums, every kernel must match the portable kernel. Results must be NaN, the same
// infinity, or close finite numbers.
var extremes = []struct {
	name        string
	fill        func(a *operands)
	forwardOnly bool // gradients are not defined
	noF16       bool // f16 cannot represent the numbers of this case
}{
	// In a backward pass, weights would be exponentials of rounding errors. All elements of a key
	// but one are 0, so that rounding does not decide which key has the largest score.
	{name: "huge scores", forwardOnly: true, fill: func(a *operands) {
		scaleBy(a.fwd.Q, a.large())
		change(a.fwd.K, func(at [4]int, old float32) float32 {
			if at[3] > 0 {
				return 0
			}
			return old
		})
	}},
	{name: "overflowing scores", noF16: true, fill: func(a *operands) {
		change(a.fwd.Q, oneSign)
		change(a.fwd.K, oneSign)
	}},
	{name: "every score is -Inf", noF16: true, fill: func(a *operands) {
		change(a.fwd.Q, func([4]int, float32) float32 { return 1e30 })
		change(a.fwd.K, func([4]int, float32) float32 { return -1e30 })
	}},
	{name: "every score of every other row is -Inf", noF16: true, fill: func(a *operands) {
		change(a.fwd.Q, func(at [4]int, _ float32) float32 {
			if at[2]%2 == 1 {
				return 1e30
			}
			return 1e-30
		})
		change(a.fwd.K, func(at [4]int, _ float32) float32 { return -1e30 * (1 + float32(at[2]%4)/4) })
	}},
	{name: "one key of Inf", forwardOnly: true, fill: func(a *operands) { // 0 * Inf in dQ
		change(a.fwd.K, func(at [4]int, old float32) float32 {
			if at[2] == 40 && at[3] == 0 {
				return inf32
			}
			return old
		})
		change(a.fwd.Q, func(at [4]int, old float32) float32 {
			if at[3] > 0 {
				return old
			}
			return float32(at[2]%2) - 0.5 // the score is Inf for half of the rows, -Inf for the other half
		})
	}},
	{name: "huge values", fill: func(a *operands) {
		scaleBy(a.fwd.V, a.large())
	}},
	{name: "huge output gradients", fill: func(a *operands) {
		scaleBy(a.bwd.DO, a.large())
	}},
	{name: "huge LSE gradients", fill: func(a *operands) {
		scaleBy(a.bwd.DLSE, a.large())
	}},
	{name: "overflowing dP", noF16: true, fill: func(a *operands) {
		change(a.fwd.V, oneSign)
		change(a.bwd.DO, oneSign)
	}},
	{name: "denormal queries and keys", fill: func(a *operands) {
		scaleBy(a.fwd.Q, a.denormal())
		scaleBy(a.fwd.K, a.denormal())
	}},
	{name: "denormal values", fill: func(a *operands) {
		scaleBy(a.fwd.V, a.denormal())
	}},
	{name: "denormal output gradients", fill: func(a *operands) {
		scaleBy(a.bwd.DO, a.denormal())
		scaleBy(a.bwd.DLSE, 0)
	}},
	{name: "zeros", fill: func(a *operands) { a.scaleAll(0) }},
	{name: "NaN", fill: func(a *operands) { a.scaleAll(nan32) }},
}

// large returns 1e30, or for f16 a number whose sums do not overflow.
func (a *operands) large() float32 {
	if a.p.DType == flashkit.Float16 {
		return 0x1p10
	}
	return 1e30
}

// denormal returns a factor that makes random numbers denormal.
func (a *operands) denormal() float32 {
	if a.p.DType == flashkit.Float16 {
		return 0x1p-16
	}
	return 0x1p-128
}

// oneSign returns 1e30, negative in some rows, so that every dot product of two rows is Inf or
// -Inf. With both signs in a row, the kernels may differ: a fused multiply-add may give -Inf where
// a separate product is Inf and the sum with -Inf is NaN.
func oneSign(at [4]int, _ float32) float32 {
	if at[2]%5 < 2 {
		return -1e30
	}
	return 1e30
}

func scaleBy(x flashkit.Tensor, by float32) {
	change(x, func(_ [4]int, old float32) float32 { return old * by })
}

func (a *operands) scaleAll(by float32) {
	for _, x := range []flashkit.Tensor{a.fwd.Q, a.fwd.K, a.fwd.V, a.bwd.DO} {
		scaleBy(x, by)
	}
}

var extremeProblems = []string{
	"b1-h2-g1-n70-m150-d24-f32",
	"b1-h2-g2-n150-m150-d17-dv40-f32-causal",
	"b1-h2-g1-n70-m70-d1-f32-window20.3",
	"b1-h1-g1-n5-m200-d64-f32",
	"b1-h6-g2-n3-m300-d17-dv40-f32-causal",
}

func TestExtremes(t *testing.T) {
	slow.UnderRace(t)
	wants := map[string]map[string][]float32{} // results of the portable kernels, which are the slowest
	for _, k := range simd.New().Kernels() {
		reference := kernel(t, map[flashkit.Pass]string{flashkit.PassForward: "simd/fwd_generic", flashkit.PassBackward: "simd/bwd_generic"}[k.Pass])
		for _, x := range extremes {
			if k.Name == reference.Name || x.forwardOnly && k.Pass == flashkit.PassBackward {
				continue
			}
			for _, name := range extremeProblems {
				for _, dtype := range dtypes {
					p := problem(t, name, dtype)
					t.Run(k.Name+"/"+x.name+"/"+p.String(), func(t *testing.T) {
						if x.noF16 && dtype == flashkit.Float16 {
							t.Skip("f16 has no such numbers")
						}
						if reason := k.Fits(p.Ask(k.Pass)); reason != "" {
							t.Skip(reason)
						}
						a := newOperands(p, heap, bhsd)
						x.fill(a)
						call := reference.Name + "/" + x.name + "/" + p.String()
						want, ok := wants[call]
						if !ok {
							a.run(t, reference)
							want = a.outputs(reference)
							wants[call] = want
						}
						a.run(t, k)
						got := a.outputs(k)
						for name := range want {
							sameKind(t, p.DType, name, got[name], want[name], rowLen(p, name))
						}
					})
				}
			}
		}
	}
}

// closeTo is the allowed difference from the portable kernel's result. One bound is relative to the
// largest number of the tensor, and one is absolute. The vector kernels flush numbers below the
// smallest normal one, 2^-126, to 0. A gradient here is a sum of up to 2^8 products with such a
// number.
var closeTo = map[flashkit.DType]struct{ relative, absolute float64 }{
	flashkit.Float32:  {1e-4, 0x1p-118},
	flashkit.Float16:  {4e-3, 0x1p-24},
	flashkit.BFloat16: {3e-2, 0x1p-118},
}

// sameKind fails unless each element of got is of the same kind as in want: NaN, Inf, -Inf or
// finite. Finite elements must be close. The bound is relative to the largest element of the
// tensor, because the terms of a row may cancel. For LSE it is relative to the element.
func sameKind(t *testing.T, dtype flashkit.DType, name string, got, want []float32, rowLen int) {
	t.Helper()
	bound := closeTo[dtype]
	size := largest(want)
	for i := range want {
		if name == "lse" {
			size = max(1, largest(want[i:i+1]))
		}
		g, w := float64(got[i]), float64(want[i])
		if kind(g) != kind(w) || kind(w) == "finite" && math.Abs(g-w) > bound.relative*size+bound.absolute {
			t.Fatalf("%s: row %d, element %d is %g, want %g", name, i/rowLen, i%rowLen, g, w)
		}
	}
}

// largest returns the largest magnitude of a finite number in x.
func largest(x []float32) float64 {
	var top float64
	for _, y := range x {
		if y := float64(y); kind(y) == "finite" {
			top = max(top, math.Abs(y))
		}
	}
	return top
}

func kind(x float64) string {
	switch {
	case x != x:
		return "NaN"
	case math.IsInf(x, 1):
		return "+Inf"
	case math.IsInf(x, -1):
		return "-Inf"
	}
	return "finite"
}

// If all elements of a row of Q are NaN, O and LSE of this row are NaN, and other rows are not.
func TestNaNRowsStayAlone(t *testing.T) {
	slow.UnderRace(t)
	isNaNRow := func(p flashkit.Problem, row int) bool { return row%p.QLen%3 == 1 }
	for _, k := range simd.New().Kernels() {
		for _, name := range extremeProblems {
			for _, dtype := range dtypes {
				p := problem(t, name, dtype)
				if k.Pass == flashkit.PassBackward || k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				a := newOperands(p, heap, bhsd)
				a.run(t, k)
				want := a.outputs(k)
				change(a.fwd.Q, func(at [4]int, old float32) float32 {
					if isNaNRow(p, at[2]) {
						return nan32
					}
					return old
				})
				a.run(t, k)
				for name, got := range a.outputs(k) {
					n := rowLen(p, name)
					sameBits(t, got, want[name], n, func(row int) bool { return !isNaNRow(p, row) }, "%s %s %s", k.Name, p, name)
					for i, y := range got {
						require.True(t, !isNaNRow(p, i/n) || y != y, "%s %s: %s is %g in a row of NaN", k.Name, p, name, y)
					}
				}
			}
		}
	}
}
