package conformance

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// A long case has thousands of keys or query rows. Most long cases have sums of 65,536 terms of one
// sign, so that the sums grow. If one float32 accumulates all terms one by one, low bits of the
// terms are lost: the sum's error grows with the square root of the number of terms. To avoid this,
// a kernel sums blocks of some hundred terms and then adds the sums of the blocks.
//
// Inputs and results would fill megabytes, so no golden vector stores them. A formula gives the
// inputs, and the oracle computes the results during the test.
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

// A longCase is an entry of longCases or longSums.
type longCase struct {
	name, catches, problem string

	fill func(in *Inputs)
}

// heavyLast gives the last key about half of every row's weight. This maximizes the gradients of
// that key's score.
func heavyLast(in *Inputs) {
	last := in.p.KVLen - 1
	steer(4, func(j int) float32 { return 6.5 * float32(j/last) })(in)
}

// rising makes the scores rise with each chunk of 4,096 keys, so that the last chunks have most of
// the weight.
func rising(in *Inputs) { steer(1, func(j int) float32 { return float32(j/4096) / 16 })(in) }

// follow sets to[i] = from[i] + 1 for every i. If from has mean 0, the products to[i] * from[i]
// have a positive mean, so their sum grows with every term.
func follow(to, from []float32) {
	for i := range to {
		to[i] = from[i] + 1
	}
}

// firstKey sets V to 1 for the first key, to 0 for the other keys, and dO to Q + 1. Most query rows
// then add terms of the same sign to the gradients of the first key and of the sink.
func firstKey(in *Inputs) {
	follow(in.do, in.q)
	eachRow(in.v, in.p.VShape(), func(j int, row []float32) {
		for c := range row {
			row[c] = float32(max(0, 1-j))
		}
	})
}

// Long returns the cases with many keys or rows, in the order of longCases and longSums.
func Long() []Case { return slices.Clone(long()) }

// long returns the long cases, computed once. All kernels share their results and bounds.
var long = sync.OnceValue(func() []Case {
	all := slices.Concat(longCases, longSums)
	cases := make([]Case, len(all))
	for i, t := range all {
		p, err := flashkit.ParseProblem(t.problem)
		if err != nil {
			panic(fmt.Sprintf("long case %s: %v", t.name, err)) // a typing error in the table
		}
		c := Case{Name: t.name, Catches: t.catches, Problem: p, fill: t.fill, brief: i >= len(longCases)}
		c.answers(longBounds)
		cases[i] = c
	}
	return cases
})

// answers sets c.truth, which computes results with the oracle, and c.bounds, which computes bounds
// with the function bound. The case then needs no golden vector. Results and bounds are computed
// once, for all kernels.
func (c *Case) answers(bound func(in *Inputs, t flashkit.DType, want result) bounds) {
	asked := *c
	c.truth = sync.OnceValue(func() result { return truth(asked.Inputs()) })
	truth := c.truth
	c.bounds = map[flashkit.DType]func() bounds{}
	for _, t := range dtypes {
		c.bounds[t] = sync.OnceValue(func() bounds { return bound(asked.Inputs(), t, truth()) })
	}
}

// answer returns the expected result and the largest allowed errors.
func (c Case) answer(in *Inputs) (want result, bound bounds, err error) {
	if c.truth == nil {
		return c.expect()
	}
	return c.truth(), c.bounds[c.Problem.DType](), nil
}

// longBounds returns the bounds of long sums. As vectorBounds does, longBounds measures the errors
// of the plain algorithm, which stores all scores. But here the sums over keys and rows are
// float64. Each term is then rounded as usual, and the sums add no error.
//
// A fixed allowance for the sums is added: 2^-20 of the largest value, which equals 16 roundings of
// a float32. A running sum of n terms of one sign has an error of sqrt(n)/4 such roundings on
// average, and three times this error at worst. A kernel that adds 512 sums of 128 terms each thus
// stays below 2^-20. The error of a running sum of 65,536 terms can exceed 2^-20 tenfold.
func longBounds(in *Inputs, t flashkit.DType, want result) bounds {
	var made bounds
	raise(&made, plain[float32, float64](in, t, want, 1), want)
	return allowed(t, want, made, func(i int, largest float64) float64 {
		if outputNames[i] == "lse" {
			return 1 // a relative error of the sum is an absolute error of its logarithm
		}
		return largest
	})
}

// sumFloor is the argument floor of allowed for sums of ordinary length. It returns largest, the
// largest value of an array, but at least 1.
func sumFloor(_ int, largest float64) float64 { return math.Max(1, largest) }
