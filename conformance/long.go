package conformance

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// A long case has thousands of keys, or query rows. Most have 65,536, so that sums have
// 65,536 terms, and terms of one sign, so that sums grow. A float32 that takes all terms one by one
// loses them little by little: the error grows with the root of their number. One
// that takes the sums of blocks of some hundreds of them does not.
//
// Inputs and results would fill megabytes, so nothing is stored: the inputs follow
// from their formula, and the oracle is asked on the spot.
var longCases = []longCase{
	{"long_rows", "O, LSE or dQ summed over all keys in one float32", "b1-h1-g1-n4-m65536-d8-f32", func(in *Inputs) { follow(in.v, in.k) }},
	{"long_columns", "dK or dV summed over all query rows in one float32", "b1-h1-g1-n65536-m4-d8-f32", func(in *Inputs) { follow(in.do, in.q) }},
	{"long_rows_bias", "O, LSE or dQ summed over all keys in one float32 where there is a bias", "b1-h1-g1-n2-m65536-d8-f32-softcap4-bias-sink", func(in *Inputs) { follow(in.v, in.k) }},
	{"long_rows_alibi", "a distance kept in 16 bits", "b1-h1-g1-n2-m65536-d8-f32-softcap4-alibi", all(slopes(0x1p-14), func(in *Inputs) { follow(in.v, in.k) })},
	{"long_columns_bias", "DBias summed over all query rows in one float32", "b1-h1-g1-n65536-m2-d8-f32-softcap4-bias", all(once(2), wideBias, firstKey)},
	{"long_columns_sink", "DSink summed over all query rows in one float32", "b1-h1-g1-n65536-m2-d8-f32-softcap4-sink", firstKey},
	{"long_rows_last", "the last of 4,096 keys left out of a sum", "b1-h1-g1-n3-m4096-d8-f32", heavyLast},
	{"long_rows_tail", "the keys after the last whole block of 4,096 and more left out of a sum", "b1-h2-g1-n3-m4131-d8-f32", heavyLast},
	{"long_rows_chunks", "keys beyond the first 128 chunks of 4,096 left out", "b1-h1-g1-n1-m600001-d1-f32", rising},
	{"long_columns_dropout", "dropout by a row's number within 65,536", "b1-h1-g1-n65613-m3-d2-f32-dropout0.25", func(in *Inputs) { follow(in.do, in.q) }},
}

// A longCase is a line of longCases or longSums.
type longCase struct {
	name, catches, problem string

	fill func(in *Inputs)
}

// heavyLast gives the last key about half the weight of a row, so that all gradients of
// it are as large as they can be.
func heavyLast(in *Inputs) {
	last := in.p.KVLen - 1
	steer(4, func(j int) float32 { return 6.5 * float32(j/last) })(in)
}

// rising lets scores rise so that the last chunks of 4,096 keys have most of the weight.
func rising(in *Inputs) { steer(1, func(j int) float32 { return float32(j/4096) / 16 })(in) }

// follow makes each element of to that of from plus 1: the mean is 1, and the
// gradient that sums products of the two grows with every term.
func follow(to, from []float32) {
	for i := range to {
		to[i] = from[i] + 1
	}
}

// firstKey gives the first key alone a value, so that the score of that key has a
// gradient of one sign, as has the sink.
func firstKey(in *Inputs) {
	follow(in.do, in.q)
	eachRow(in.v, in.p.VShape(), func(j int, row []float32) {
		for c := range row {
			row[c] = float32(max(0, 1-j))
		}
	})
}

// Long returns the cases with many keys or rows, in the order of the tables in long.go and
// long_sums.go.
func Long() []Case { return slices.Clone(long()) }

// long are those cases, with results and bounds that are computed once for all kernels.
var long = sync.OnceValue(func() []Case {
	all := slices.Concat(longCases, longSums)
	cases := make([]Case, len(all))
	for i, t := range all {
		p, err := flashkit.ParseProblem(t.problem)
		if err != nil {
			panic(fmt.Sprintf("long case %s: %v", t.name, err)) // a typing mistake in the table
		}
		c := Case{Name: t.name, Catches: t.catches, Problem: p, fill: t.fill, brief: i >= len(longCases)}
		c.answers(longBounds)
		cases[i] = c
	}
	return cases
})

// answers makes the case one without a vector: its results come from the oracle, and its
// bounds from the function, once for all kernels.
func (c *Case) answers(bound func(in *Inputs, t flashkit.DType, want result) bounds) {
	asked := *c
	c.truth = sync.OnceValue(func() result { return truth(asked.Inputs()) })
	truth := c.truth
	c.bounds = map[flashkit.DType]func() bounds{}
	for _, t := range dtypes {
		c.bounds[t] = sync.OnceValue(func() bounds { return bound(asked.Inputs(), t, truth()) })
	}
}

// answer returns what the kernels must give, and how far they may be from it.
func (c Case) answer(in *Inputs) (want result, bound bounds, err error) {
	if c.truth == nil {
		return c.expect()
	}
	return c.truth(), c.bounds[c.Problem.DType](), nil
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
	raise(&made, plain[float32, float64](in, t, want, 1), want)
	return allowed(t, want, made, func(i int, largest float64) float64 {
		if outputNames[i] == "lse" {
			return 1 // an error of the sum, relative, is one of its logarithm, absolute
		}
		return largest
	})
}

// sumFloor is the unit of the floor under the bounds of sums of ordinary length.
func sumFloor(_ int, largest float64) float64 { return math.Max(1, largest) }
