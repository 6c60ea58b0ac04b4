package wasm

import (
	"encoding/binary"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/ends"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// The features that the kernels support. The features are listed one by one, so that the kernels do
// not claim features that flashkit may add later. K and V of another type than Q need no other
// kernel: the host widens all rows to float32, or the module does so for decode.
const (
	backwardTakes = flashkit.FeatureShift | flashkit.FeatureSoftcap | flashkit.FeatureALiBi | flashkit.FeatureBias |
		flashkit.FeatureMask | flashkit.FeatureRanges | flashkit.FeatureSink | flashkit.FeatureDropout | flashkit.FeatureOrigin | flashkit.FeatureRagged
	forwardTakes = backwardTakes | flashkit.FeaturePage | flashkit.FeatureCarry | flashkit.FeatureMixed
)

// moduleFeatures returns the feature bits of the parameter block, in the order of kernel.c. Ragged
// and paged sequences have no bit, because the host resolves them when it copies rows. The sink has
// no bit in the backward pass, because LSE already includes it.
func moduleFeatures(c *flashkit.Call) (bits uint32) {
	forward := c.Pass == flashkit.PassForward
	for i, has := range [...]bool{
		c.Score.Softcap != 0, c.Score.ALiBi, c.Score.Bias, hidesPairs(c), c.Score.Sink && forward,
		c.Score.Dropout != 0, c.Carry && forward, wantsDBias(c),
	} {
		if has {
			bits |= 1 << i
		}
	}
	return bits
}

// hidesPairs reports whether a mask or ranges of keys hide pairs inside the band. The host writes both
// to the mask of the module.
func hidesPairs(c *flashkit.Call) bool { return c.Score.Mask || c.Score.Ranges != 0 }

// Bits of the feature word.
const featureBias, featureMask = 4, 8

// wantsDBias reports whether the call requests the gradient of the bias.
func wantsDBias(c *flashkit.Call) bool {
	return c.Pass == flashkit.PassBackward && c.Args != nil && c.Score.Bias && !c.Args.DBias.IsZero()
}

// dropout returns the threshold of dropout and the factor of kept weights. A weight is dropped if
// its 16 random bits are below the upper half of the threshold.
func dropout(p float32) (threshold uint32, keep float32) {
	return philox.Below(p), philox.Keep(p)
}

const (
	wordFeatures = 19 // first feature word of the parameter block
	wordKV       = 35 // first word for 16-bit K and V
	wordOrigin   = 38 // first word of the row and key origin
)

// writeScore writes the feature words of the parameter block for query head h of sequence b. Row i
// and key i+diagonal have distance 0 for ALiBi.
func (x *instance) writeScore(n *plan, w *places, b, h, diagonal int) {
	var slope, sink float32
	if t := &n.c.Args.Slopes; n.c.Score.ALiBi {
		slope = ends.Slope(t.Float32s()[t.Repeated(b, h, 0)])
	}
	if t := &n.c.Args.Sink; n.c.Score.Sink {
		sink = ends.Logit(t.Float32s()[t.Repeated(0, h, 0)])
	}
	threshold, keep := dropout(n.c.Score.Dropout)
	seed, origin := n.c.Args.Seed, &n.c.Args.Origin
	to := x.at(w.block+4*wordFeatures, blockWords-wordFeatures)
	for i, word := range [...]uint32{
		n.features, uint32(diagonal), uint32(int64(diagonal) >> 32), math.Float32bits(n.c.Score.Softcap),
		math.Float32bits(slope), math.Float32bits(sink), threshold, math.Float32bits(keep),
		uint32(seed), uint32(seed >> 32), uint32(origin.Head + h), uint32(origin.Batch + b), uint32(w.bias), uint32(w.mask), uint32(w.dbias), n.repeats,
	} {
		binary.LittleEndian.PutUint32(to[4*i:], word)
	}
	to = to[4*(wordOrigin-wordFeatures):]
	binary.LittleEndian.PutUint32(to, uint32(origin.Row))
	binary.LittleEndian.PutUint32(to[4:], uint32(origin.Key/8))
}

// loadPairs copies elements of bias and mask to the stage at w. The elements are for rows [i0, i1)
// of query head h and keys [j0, j1) of sequence b. If there are no keys it reads nothing, because
// bias and mask may then have no elements.
func (j *job) loadPairs(x *instance, w *places, b, h, i0, i1, j0, j1 int) {
	if j0 >= j1 {
		return
	}
	j.poisonPairs(x, w)
	for r := range i1 - i0 {
		if t := &j.args.Bias; j.c.Score.Bias && (r == 0 || j.repeats&featureBias == 0) {
			x.loadRow(w.bias+uint64(4*r*tile), t, t.Repeated(b, h, i0+r)+j0, j1-j0)
		}
		if hidesPairs(j.c) && (r == 0 || j.repeats&featureMask == 0) {
			j.loadMask(x.memory[w.mask+uint64(r*tile):][:j1-j0], b, h, i0+r, j0)
		}
	}
}

// loadMask sets to[c] to 1 if mask and ranges of row i show key j0+c, else to 0.
func (j *job) loadMask(to []byte, b, h, i, j0 int) {
	if t := &j.args.Mask; j.c.Score.Mask {
		from := t.Repeated(b, h, i) + j0
		for c, seen := range t.Bools()[from : from+len(to)] {
			one := byte(0) // compiles to a conditional move, not a branch
			if seen {
				one = 1
			}
			to[c] = one
		}
	}
	if j.c.Score.Ranges == 0 {
		return
	}
	end := 0
	for ends := j.rangesOf(b, h, i); len(ends) > 0; ends = ends[2:] {
		first := max(end, min(int(ends[0])-j0, len(to)))
		clear(to[end:first])
		end = max(first, min(int(ends[1])-j0, len(to)))
		for c := first; c < end && !j.c.Score.Mask; c++ {
			to[c] = 1
		}
	}
	clear(to[end:])
}

// rangesOf returns the ends of the ranges of a row.
func (j *job) rangesOf(b, h, i int) []int32 {
	t := &j.args.Ranges
	return t.Int32s()[t.Repeated(b, h, i):][:2*j.c.Score.Ranges]
}

// sees reports whether the ranges of some row [i0, i1) have a key of [j0, j1). If not, the module needs
// no such key. Without ranges, sees returns true.
func (j *job) sees(b, h, i0, i1, j0, j1 int) bool {
	for i := i0; i < i1 && j.c.Score.Ranges != 0; i++ {
		for ends := j.rangesOf(b, h, i); len(ends) > 0; ends = ends[2:] {
			if max(int(ends[0]), j0) < min(int(ends[1]), j1) {
				return true
			}
		}
	}
	return j.c.Score.Ranges == 0
}

// rowsAlike returns feature bits. The bit of the bias or mask is set if all query rows share one row
// of this tensor.
func rowsAlike(c *flashkit.Call) (bits uint32) {
	if c.Args == nil {
		return 0
	}
	if c.Score.Bias && c.Args.Bias.Shape()[2] == 1 {
		bits |= featureBias
	}
	if c.Score.Mask && c.Args.Mask.Shape()[2] == 1 && c.Score.Ranges == 0 {
		bits |= featureMask
	}
	return bits
}
