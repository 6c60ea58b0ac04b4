package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// A call with ranges of keys skips all keys that no row of a tile sees. rangeBounds are computed for
// the rows of an item or of a tile, before the keys are read.

// rowRanges are the ranges of keys that a row sees, each as its first key and the key after its
// last. The ranges are in order. An unused range is empty.
type rowRanges [2][2]int

// everyRange has all keys.
var everyRange = rowRanges{{0, math.MaxInt}, {math.MaxInt, math.MaxInt}}

// rangesOf returns the ranges of row i of a head, or everyRange if the call has no ranges.
func rangesOf(args *flashkit.Args, count, b, h, i int) rowRanges {
	if count == 0 {
		return everyRange
	}
	t := &args.Ranges
	return rangesAt(t.Int32s()[t.Repeated(b, h, i):], count)
}

// rangesAt returns the ranges of a row whose ends begin the slice.
func rangesAt(ends []int32, count int) (x rowRanges) {
	x[0] = [2]int{int(ends[0]), int(ends[1])}
	if x[1] = [2]int{x[0][1], x[0][1]}; count > 1 {
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

// bits returns a word with a bit for each of n keys from key k on, set if a range has the key.
func (x *rowRanges) bits(k, n int) uint32 {
	return laneMask(x[0][0]-k, x[0][1]-k, n) | laneMask(x[1][0]-k, x[1][1]-k, n)
}

// has reports whether a range has the key.
func (x *rowRanges) has(key int) bool {
	return x[0][0] <= key && key < x[0][1] || x[1][0] <= key && key < x[1][1]
}

// rangeBounds are bounds of the ranges of several rows. No row sees a key outside of the two ranges
// of some. All rows see the keys of the two ranges of all, which may be empty.
type rangeBounds struct{ some, all rowRanges }

// noBounds are the bounds of no rows.
var noBounds = rangeBounds{
	some: rowRanges{{math.MaxInt, 0}, {math.MaxInt, 0}},
	all:  rowRanges{{0, math.MaxInt}, {0, math.MaxInt}},
}

// boundsOf returns the bounds of the rows [from, to) of a head. Ranges may exceed the sequence's keys:
// the bounds are those of the ranges cut to the keys, so that a sequence has the same bounds in any batch.
func (j *job) boundsOf(s *seqTile, h, from, to int) rangeBounds {
	x := noBounds
	if from >= to {
		return x
	}
	t := &j.args.Ranges
	ends, at, step := t.Int32s(), t.Repeated(s.b, h, from), rowStep(t)
	x.all[1] = [2]int{}
	for r := range j.p.Score.Ranges {
		x.some[r], x.all[r] = boundsOf(ends[at+2*r:], step, to-from, int32(s.M))
	}
	return x
}

// boundsOf returns the bounds of one range in each of n rows, whose ends are step elements apart. The
// ranges are cut to the given number of keys.
func boundsOf(ends []int32, step, n int, keys int32) (some, all [2]int) {
	first, last, allFrom, allUntil := int32(math.MaxInt32), int32(0), int32(0), int32(math.MaxInt32)
	for i := 0; n > 0; i, n = i+step, n-1 {
		from, until := min(ends[i], keys), min(ends[i+1], keys)
		if from < until {
			first, last = min(first, from), max(last, until)
		}
		allFrom, allUntil = max(allFrom, from), min(allUntil, until)
	}
	return [2]int{int(first), int(last)}, [2]int{int(allFrom), int(allUntil)}
}

// join extends the bounds to other rows, whose bounds are y.
func (x *rangeBounds) join(y *rangeBounds) {
	for r := range x.some {
		x.some[r] = [2]int{min(x.some[r][0], y.some[r][0]), max(x.some[r][1], y.some[r][1])}
		x.all[r] = [2]int{max(x.all[r][0], y.all[r][0]), min(x.all[r][1], y.all[r][1])}
	}
}

// sees reports whether some row may see a key of [lo, hi).
func (x *rangeBounds) sees(lo, hi int) bool {
	return max(lo, x.some[0][0]) < min(hi, x.some[0][1]) || max(lo, x.some[1][0]) < min(hi, x.some[1][1])
}

// seesAll reports whether all rows see all keys of [lo, hi).
func (x *rangeBounds) seesAll(lo, hi int) bool {
	return x.all[0][0] <= lo && hi <= x.all[0][1] || x.all[1][0] <= lo && hi <= x.all[1][1]
}

// hull returns the part of [lo, hi) from the first key to the last that some row may see.
func (x *rangeBounds) hull(lo, hi int) (first, last int) {
	return max(lo, min(x.some[0][0], x.some[1][0])), min(hi, max(x.some[0][1], x.some[1][1]))
}

// hidesByRow reports whether mask or ranges hide pairs of a row and a key inside the band.
func (pl *plan) hidesByRow() bool { return pl.p.Score.Mask || pl.p.Score.Ranges != 0 }

// laneMask returns a mask in which bits [from, to) are set, clipped to [0, n).
func laneMask(from, to, n int) uint32 {
	from, to = max(from, 0), min(to, n)
	if from >= to {
		return 0
	}
	return uint32(1<<to - 1<<from)
}
