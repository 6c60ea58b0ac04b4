package simd

import "github.com/flashkit-go/flashkit"

// featureTimes is the time that each feature adds to a pair, in nanoseconds.
var featureTimes = [...]struct {
	feature flashkit.Feature
	pair    float64 // of the portable kernels
	forward float64 // of the forward kernels in assembly; a pace has its own unit
	keys    float64 // likewise, where a bias or mask is the same for all rows
	vector  float64 // of the backward kernels in assembly
}{
	{flashkit.FeatureSoftcap, 25, .25, .25, .1},
	{flashkit.FeatureALiBi, 3, .085, .085, .03},
	{flashkit.FeatureBias, 2, .48, .17, 1.2},
	{flashkit.FeatureMask, 3, .38, .02, .08},
	{flashkit.FeatureDropout, 8, .15, .15, .085},
}

// forwardTime returns what the features of c add to a pair of the forward kernels in
// assembly.
func forwardTime(c *flashkit.Call) (sum float64) {
	asked := c.Features()
	for i := range featureTimes {
		f := &featureTimes[i]
		switch {
		case asked&f.feature == 0:
		case repeats(c, f.feature):
			sum += f.keys
		default:
			sum += f.forward
		}
	}
	return sum
}

// repeats reports whether the bias, or mask, of c is the same for all rows.
func repeats(c *flashkit.Call, f flashkit.Feature) bool {
	if c.Args == nil || c.QLen == 1 {
		return false
	}
	return f == flashkit.FeatureBias && c.Args.Bias.Shape()[2] == 1 || f == flashkit.FeatureMask && c.Args.Mask.Shape()[2] == 1
}

// vectorTime returns what the features of c add to a pair of the backward kernels in
// assembly.
func vectorTime(c *flashkit.Call) (sum float64) {
	asked := c.Features()
	for i := range featureTimes {
		f := &featureTimes[i]
		switch {
		case asked&f.feature == 0:
		case repeats(c, f.feature):
			sum += min(f.keys, f.vector)
		default:
			sum += f.vector
		}
	}
	return sum
}

// pairTime returns what the features of c add to a pair of the portable kernels.
func pairTime(c *flashkit.Call) (sum float64) {
	asked := c.Features()
	for _, f := range featureTimes {
		if asked&f.feature != 0 {
			sum += f.pair
		}
	}
	return sum
}

// pairsSeen returns how many rows and keys meet in all heads and sequences of c.
func pairsSeen(c *flashkit.Call) float64 {
	if c.Args == nil { // equal lengths
		return float64(c.Batch*c.Heads) * float64(c.Problem.Area())
	}
	return float64(c.Heads) * float64(c.Area())
}

// rowsAndKeys returns how many query rows and keys there are, of all heads.
func rowsAndKeys(c *flashkit.Call) (rows, keys float64) {
	if equalLengths(c) {
		return float64(c.Batch * c.Heads * c.QLen), float64(c.Batch * c.KVHeads * c.KVLen)
	}
	for b := range c.Batch {
		s := c.Seq(b)
		rows, keys = rows+float64(s.N*c.Heads), keys+float64(s.M*c.KVHeads)
	}
	return rows, keys
}

// longestPairs returns how many pairs the longest item of a ragged call has, which
// takes n rows or keys of the longest sequence at a time: 0 where all are equal.
func (pl *plan) longestPairs(n int, keys bool) float64 {
	c, f := pl.call, &pl.portable
	if c.Args == nil || !c.Ragged {
		return 0
	}
	p := c.Problem
	p.QLen, p.KVLen = f.n, f.m
	of, across := f.n, f.m
	if keys {
		of, across = across, of
	}
	return share(&p, n, of, across) * float64(p.Area())
}

// halfTime is what the portable kernels take to widen an element of f16, which
// has its own exponent, in nanoseconds.
const halfTime = 3

// halfTimes returns the time to widen so many elements if they are of f16.
func halfTimes(t flashkit.DType, elements float64) float64 {
	if t == flashkit.Float16 {
		return elements * halfTime
	}
	return 0
}
