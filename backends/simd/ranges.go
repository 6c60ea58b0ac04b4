package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// rowRanges are the ranges of keys that a row sees, each as its first key and the key after its
// last. The ranges are in order. An unused range is empty.
type rowRanges [2][2]int

// everyRange has all keys.
var everyRange = rowRanges{{0, math.MaxInt}, {math.MaxInt, math.MaxInt}}

// rangesOf returns the ranges of row i of a head, or everyRange if the call has no ranges.
func rangesOf(args *flashkit.Args, count, b, h, i int) (x rowRanges) {
	if count == 0 {
		return everyRange
	}
	t := &args.Ranges
	ends := t.Int32s()[t.Repeated(b, h, i):][:2*count]
	x[0] = [2]int{int(ends[0]), int(ends[1])}
	x[1] = [2]int{x[0][1], x[0][1]}
	if count > 1 {
		x[1] = [2]int{int(ends[2]), int(ends[3])}
	}
	return x
}

// within returns the parts of the ranges in [lo, hi).
func (x rowRanges) within(lo, hi int) rowRanges {
	for r := range x {
		for end := range x[r] {
			x[r][end] = max(lo, min(x[r][end], hi))
		}
	}
	return x
}
