//go:build (amd64 || arm64) && !purego

package simd

// eachPart cuts the current block into parts, and calls f for each part that some row of t may see.
// A part is keys [from, from+keys). edge tells f that the band may hide some of these keys from
// some row. hidden tells f the same about the mask. If edge and hidden are false, the part consists
// of whole steps of step keys. If hidden is true, the part begins at a multiple of pack. step and
// pack are powers of 2.
func (isa *laneRoutines) eachPart(j *job, t *laneTile, x *laneScratch, step, pack int, f func(from, keys int, edge, hidden bool)) {
	first, allUntil := t.seq.Keys(t.from)
	allFrom, last := t.seq.Keys(t.from + t.n - 1)
	from, to := max(x.lo, first), min(x.hi, last)
	if x.mask.ofRows && from < to {
		x.mask.read(j, isa, &t.seq, t.from, t.n, from, to)
	}
	for from < to {
		until, hides := to, hidesNothing
		if x.mask.asked() {
			until, hides = x.mask.part(from, to)
		}
		switch hides {
		case hidesNothing:
			var whole bool
			until, whole = t.seq.wholePart(t.from, t.n, from, until, step)
			f(from, until-from, !whole, false)
		case hidesSome:
			at := from &^ (pack - 1)
			f(at, until-at, at < allFrom || until > allUntil, true)
		}
		from = until
	}
}
