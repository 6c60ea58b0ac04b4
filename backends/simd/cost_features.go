package simd

import "github.com/flashkit-go/flashkit"

// featureTimes is the time that each feature adds per pair, in nanoseconds.
var featureTimes = [...]struct {
	feature flashkit.Feature
	pair    float64 // of the portable kernels
	forward float64 // of the forward kernels in assembly; pace.feature scales it
	keys    float64 // as forward, if all rows share the bias or mask
	vector  float64 // of the backward kernels in assembly
}{
	{flashkit.FeatureSoftcap, 25, .25, .25, .1},
	{flashkit.FeatureALiBi, 3, .085, .085, .03},
	{flashkit.FeatureBias, 2, .48, .17, 1.2},
	{flashkit.FeatureMask, 3, .38, .02, .08},
	{flashkit.FeatureRanges, 3, .02, .02, .02},
	{flashkit.FeatureDropout, 8, .15, .15, .085},
}

// forwardTime returns the features' time per pair in the forward kernels in assembly.
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

// repeats reports whether all rows share the bias or mask of c.
func repeats(c *flashkit.Call, f flashkit.Feature) bool {
	if c.Args == nil || c.QLen == 1 {
		return false
	}
	return f == flashkit.FeatureBias && c.Args.Bias.Shape()[2] == 1 || f == flashkit.FeatureMask && c.Args.Mask.Shape()[2] == 1
}

// vectorTime returns the features' time per pair in the backward kernels in assembly.
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

// pairTime returns the features' time per pair in the portable kernels.
func pairTime(c *flashkit.Call) (sum float64) {
	asked := c.Features()
	for _, f := range featureTimes {
		if asked&f.feature != 0 {
			sum += f.pair
		}
	}
	return sum
}

// pairsSeen returns the number of pairs of a row and a key inside the band, over all heads and
// sequences of c.
func pairsSeen(c *flashkit.Call) float64 {
	if c.Args == nil { // equal lengths
		return float64(c.Batch*c.Heads) * float64(c.Problem.Area())
	}
	return float64(c.Heads) * float64(c.Area())
}

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

// longestPairs returns the number of pairs in the largest item of a ragged call. The item has n
// query rows, or n keys if keys is true, of a sequence with the largest lengths. longestPairs
// returns 0 if all lengths are equal.
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

// halfTime and brainTime are the times, in nanoseconds, that the portable kernels need to convert an f16 or
// a bf16 element.
const halfTime, brainTime = 3, 1

// halfTimes returns the time to convert elements of type t, 0 for float32.
func halfTimes(t flashkit.DType, elements float64) float64 {
	switch t {
	case flashkit.Float16:
		return elements * halfTime
	case flashkit.BFloat16:
		return elements * brainTime
	}
	return 0
}

// share returns the fraction of a head's pairs that belong to its largest item. If the item has n
// query rows, of is the number of all query rows, and across is the number of keys. If the item has
// n keys, of is the number of all keys, and across is the number of query rows.
func share(p *flashkit.Problem, n, of, across int) float64 {
	n = min(n, of)
	seen := n
	for _, side := range [2]int{p.Band.Left(), p.Band.Right()} {
		if side == flashkit.Unlimited {
			seen = across
			break
		}
		seen += min(side, across)
	}
	return min(1, float64(n)*float64(min(seen, across))/float64(max(1, p.Area())))
}
