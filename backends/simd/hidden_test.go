package simd_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Some rows of a tile see a key and other rows do not. The key must not affect rows that do not see
// it. A weight of 0 is not enough, because 0 * NaN is NaN. A running maximum that includes the key
// would also change bits.

var (
	nan32 = float32(math.NaN())
	inf32 = float32(math.Inf(1))
)

var hiddenProblems = []string{
	"b1-h4-g2-n150-m150-d24-dv20-f32-causal",
	"b1-h2-g1-n70-m150-d16-f32-causal",
	"b1-h2-g1-n150-m70-d17-f32-causal-topleft",
	"b1-h2-g1-n150-m150-d24-dv32-f32-window20.0",
	"b1-h2-g2-n140-m170-d33-f32-window5.9",
	"b1-h4-g2-n20-m150-d24-dv20-f32-causal",
	"b1-h3-g1-n12-m150-d33-f32-window40.4",
}

// hiddenAt returns numbers of keys or rows to overwrite: at the edges of typical tiles, and some
// between edges.
func hiddenAt(n int) []int {
	at := []int{0, 15, 31, 32, 40, 63, 64, 100, 127, 128, n - 1}
	if testing.Short() {
		at = []int{0, 31, 40, 64, 128, n - 1}
	}
	for len(at) > 0 && at[len(at)-2] >= n-1 {
		at = append(at[:len(at)-2], n-1)
	}
	return at
}

// spoilers returns the values to which tests set hidden keys and rows.
func spoilers() []float32 {
	if testing.Short() {
		return []float32{nan32, 1000}
	}
	return []float32{nan32, inf32, -inf32, 1000}
}

func forHidden(t *testing.T, f func(t *testing.T, k flashkit.Kernel, p flashkit.Problem)) {
	for _, k := range simd.New().Kernels() {
		for i, name := range hiddenProblems {
			for _, dtype := range someTypes(i) {
				p := problem(t, name, dtype)
				t.Run(k.Name+"/"+p.String(), func(t *testing.T) {
					if reason := k.Fits(p.Ask(k.Pass)); reason != "" {
						t.Skip(reason)
					}
					f(t, k, p)
				})
			}
		}
	}
}

// spoil sets the elements of row r of the first head of x. It returns a function that restores the
// row.
func spoil(x flashkit.Tensor, r int, with float32) (undo func()) {
	row := func(f func(c int, old float32) float32) {
		change(x, func(at [4]int, old float32) float32 {
			if at[0] == 0 && at[1] == 0 && at[2] == r {
				return f(at[3], old)
			}
			return old
		})
	}
	before := make([]float32, x.Shape()[3])
	row(func(c int, old float32) float32 { before[c] = old; return with })
	return func() { row(func(c int, _ float32) float32 { return before[c] }) }
}

func within(i, from, to int) bool { return from <= i && i < to }

// A key may hold any values. O, LSE and dQ of rows that do not see the key do not change. dK and dV
// of keys that only such rows see do not change either.
func TestHiddenKey(t *testing.T) {
	slow.UnderRace(t)
	forHidden(t, func(t *testing.T, k flashkit.Kernel, p flashkit.Problem) {
		a := newOperands(p, heap, bhsd)
		a.run(t, k)
		want := a.outputs(k)
		group := p.Heads / p.KVHeads
		for _, j := range hiddenAt(p.KVLen) {
			seenFrom, seenTo := p.Queries(j)
			blindRow := func(row int) bool { // of O, LSE and dQ
				return row/p.QLen >= group || !within(row%p.QLen, seenFrom, seenTo)
			}
			apart := func(row int) bool { // of dK and dV
				from, to := p.Queries(row % p.KVLen)
				return row/p.KVLen >= 1 || to <= seenFrom || seenTo <= from
			}
			where := map[string]func(int) bool{"o": blindRow, "lse": blindRow, "dq": blindRow, "dk": apart, "dv": apart}
			for _, with := range spoilers() {
				for in, tensors := range map[string][]flashkit.Tensor{"k": {a.fwd.K}, "v": {a.fwd.V}, "k and v": {a.fwd.K, a.fwd.V}} {
					var undo []func()
					for _, x := range tensors {
						undo = append(undo, spoil(x, j, with))
					}
					a.run(t, k)
					got := a.outputs(k)
					for _, f := range undo {
						f()
					}
					for name := range want {
						sameBits(t, got[name], want[name], rowLen(p, name), where[name], "%s with %g in key %d of %s", name, with, j, in)
					}
					if with != with && seenFrom < seenTo && in != "v" {
						for name, x := range want {
							at := map[bool]int{true: j, false: seenFrom}[name == "dk" || name == "dv"] * rowLen(p, name)
							require.True(t, got[name][at] != got[name][at], "%s: NaN in key %d of %s must show in %g where it is seen", name, j, in, x[at])
						}
					}
				}
			}
		}
	})
}

// A query row may hold any values. They do not change the results of other rows, or dK and dV of
// keys that the row does not see.
func TestHiddenRow(t *testing.T) {
	slow.UnderRace(t)
	forHidden(t, func(t *testing.T, k flashkit.Kernel, p flashkit.Problem) {
		a := newOperands(p, heap, bhsd)
		a.run(t, k)
		want := a.outputs(k)
		for _, i := range hiddenAt(p.QLen) {
			seenFrom, seenTo := p.Keys(i)
			otherRow := func(row int) bool { return row != i }
			unseenKey := func(row int) bool { return row/p.KVLen >= 1 || !within(row%p.KVLen, seenFrom, seenTo) }
			where := map[string]func(int) bool{"o": otherRow, "lse": otherRow, "dq": otherRow, "dk": unseenKey, "dv": unseenKey}
			for _, with := range spoilers() {
				for in, tensors := range map[string][]flashkit.Tensor{"q": {a.fwd.Q}, "do": {a.bwd.DO}, "dlse": {a.bwd.DLSE}} {
					if k.Pass == flashkit.PassForward && in != "q" {
						continue
					}
					undo := spoil(tensors[0], i, with)
					a.run(t, k)
					got := a.outputs(k)
					undo()
					for name := range want {
						sameBits(t, got[name], want[name], rowLen(p, name), where[name], "%s with %g in row %d of %s", name, with, i, in)
					}
					if with != with && seenFrom < seenTo && in == "q" {
						for name := range want {
							at := map[bool]int{true: seenFrom, false: i}[name == "dk" || name == "dv"] * rowLen(p, name)
							require.True(t, got[name][at] != got[name][at], "%s: NaN in row %d of %s must show where it counts", name, i, in)
						}
					}
				}
			}
		}
	})
}

// rowLen returns the length of a row of the named output.
func rowLen(p flashkit.Problem, name string) int {
	switch name {
	case "lse":
		return 1
	case "o", "dv":
		return p.VDim
	case "dq", "dk":
		return p.Dim
	}
	panic(fmt.Sprintf("no output %s", name))
}
