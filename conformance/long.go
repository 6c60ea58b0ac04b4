package conformance

import (
	"fmt"
	"math"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// A long case has 65,536 keys, or query rows, so that sums have 65,536 terms, and
// terms of one sign, so that sums grow. A float32 that takes all terms one by one
// loses them little by little: the error grows with the root of their number. One
// that takes the sums of blocks of some hundreds of them does not.
//
// Inputs and results would fill megabytes, so nothing is stored: the inputs follow
// from their formula, and the oracle is asked on the spot.
var longCases = []struct {
	name, catches, problem string

	fill func(in *Inputs)
}{
	{"long_rows", "O, LSE or dQ summed over all keys in one float32", "b1-h1-g1-n4-m65536-d8-f32", func(in *Inputs) { follow(in.v, in.k) }},
	{"long_columns", "dK or dV summed over all query rows in one float32", "b1-h1-g1-n65536-m4-d8-f32", func(in *Inputs) { follow(in.do, in.q) }},
}

// follow makes each element of to that of from plus 1: the mean is 1, and the
// gradient that sums products of the two grows with every term.
func follow(to, from []float32) {
	for i := range to {
		to[i] = from[i] + 1
	}
}

// Long returns the cases with many keys or rows, in the order of the table in long.go.
func Long() []Case {
	cases := make([]Case, len(longCases))
	for i, t := range longCases {
		p, err := flashkit.ParseProblem(t.problem)
		if err != nil {
			panic(fmt.Sprintf("long case %s: %v", t.name, err)) // a typing mistake in the table
		}
		c := Case{Name: t.name, Catches: t.catches, Problem: p, fill: t.fill}
		c.truth = sync.OnceValue(func() result { return truth(c.Inputs()) })
		cases[i] = c
	}
	return cases
}

// answer returns what the kernels must give, and how far they may be from it.
func (c Case) answer(in *Inputs) (want result, bound bounds, err error) {
	if c.truth == nil {
		return c.expect()
	}
	want = c.truth()
	return want, longBounds(in, c.Problem.DType, want), nil
}

// longBounds is vectorBounds where sums are long. What rounding excuses is measured
// on the plain algorithm with its sums over keys and rows in float64: every term has
// the precision of the problem, and no sum adds an error. What a sum may add is a
// number, whatever the kernels do: 2^-20 of the largest value, which is 16 times the
// rounding of a float32. A running sum of n terms of one sign is off by a quarter of
// the root of n such roundings, in the middle, and by three times that at worst. So
// 512 sums of blocks of 128 terms stay below 2^-20, and 65,536 single terms reach
// ten times as much.
func longBounds(in *Inputs, t flashkit.DType, want result) bounds {
	var made bounds
	raise(&made, plain[float32, float64](in, t, want), want)
	return allowed(t, want, made, func(i int, largest float64) float64 {
		if outputNames[i] == "lse" {
			return 1 // an error of the sum, relative, is one of its logarithm, absolute
		}
		return largest
	})
}

// sumFloor is the unit of the floor under the bounds of sums of ordinary length.
func sumFloor(_ int, largest float64) float64 { return math.Max(1, largest) }
