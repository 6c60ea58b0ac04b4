//go:build (amd64 || arm64) && !purego

package simd

// skipsTile reports whether the ranges hide all keys of the block from all rows of a tile, which
// begins at row from of head h. It sets the bounds of the tile's rows. A tile with a bias is not
// skipped, because it also writes dBias.
func (j *job) skipsTile(x *keyBlock, h, from int) bool {
	if !x.mask.ranges {
		return false
	}
	x.mask.bounds = j.boundsOf(x.b, h, from, min(from+j.rows, x.N))
	return !j.p.Score.Bias && !x.mask.bounds.sees(x.from, x.to)
}

// skipTile lets the tile pass without adding to it. The block still waits for its predecessor, so
// that later blocks add to dQ in order.
func (isa *laneRoutines) skipTile(j *job, x *keyBlock, item, h, t int, at int64) {
	if !j.waitFor(x.predecessor, at) {
		return // canceled
	}
	y := isa.stats(j, x.b, h, t)
	isa.flushKeyRun(j, &y, &x.keyRange, h, t)
	j.progress[item].Store(at + 1)
}

// hideRanges clears the bits of keys in x.masks that the ranges hide, for rows [lo, hi) of the tile
// and the panel that begins at key k. It returns the rows from the first that sees a key of the panel
// to the last, rounded to whole groups of edgeGroup rows. It sets dS of the other rows to 0.
func (isa *laneRoutines) hideRanges(j *job, x *keyBlock, y *rowTile, k, lo, hi int) (first, last int) {
	first, last = hi, lo
	for r := lo; r < hi; r++ {
		of := rangesOf(j.args, j.p.Score.Ranges, x.b, y.h, y.from+r)
		if x.masks[r] &= of.bits(k, isa.lanes); x.masks[r] != 0 {
			first, last = min(first, r), r+1
		}
	}
	first, last = first/edgeGroup*edgeGroup, min(ceilDiv(last, edgeGroup)*edgeGroup, hi)
	first = min(first, hi)
	step, at := dsStep(&j.plan), k-x.from
	for r := lo; r < hi; r++ {
		if r < first || r >= last {
			clear(x.ds[r*step+at:][:isa.lanes])
		}
	}
	return first, last
}

// seesPart reports whether a range of n rows from row r on has one of the keys [lo, end) of the block.
// Other keys must add nothing to dQ, not even 0: see hides.
func (j *job) seesPart(x *keyBlock, y *rowTile, r, n, lo, end int) bool {
	bounds := j.boundsOf(x.b, y.h, r, r+n)
	return bounds.sees(x.from+lo, x.from+end)
}

// inRanges reports whether a range of the row has the key.
func (j *job) inRanges(b, h, row, key int) bool {
	of := rangesOf(j.args, j.p.Score.Ranges, b, h, row)
	return of.has(key)
}
