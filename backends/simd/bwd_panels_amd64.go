//go:build !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

// A gradPanels is the keys of one item of a backward pass on tiles, and their dK and
// dV, in panels of as many keys as there are lanes.
type gradPanels struct {
	keyRange
	gradSum // [panels][dim][lanes]
}

func newGradPanels(j *job, ws *arena, item int) gradPanels {
	return gradPanels{j.keyRangeOf(item), j.newGradSum(ws, upToTiles(j.p.Dim), upToTiles(j.p.VDim))}
}

// eachPanel calls panel for the panels that the n rows of a tile see, and then queries
// for their keys, in the order of all blocks, of which at is the tile's place.
func (x *gradPanels) eachPanel(j *job, item, row, n int, at int64, panel func(k int), queries func(lo, hi int)) {
	first, _ := j.p.Keys(row)
	_, last := j.p.Keys(row + n - 1)
	lo, hi := max(first&^(pairLanes-1), x.from), min(last, x.to)
	for k := lo; k < hi; k += pairLanes {
		if j.canceled() {
			return
		}
		panel(k)
	}
	if !j.waitFor(j.before(x.keyRange, item), at) {
		return // canceled
	}
	if lo < hi {
		queries(lo, hi)
	}
	j.passed[item].Store(at + 1)
}

// panelRows returns which of the rows of a tile see the panel from key k on: the
// first, rounded down to a step, and how many, in whole steps or to the last one.
func (x *gradPanels) panelRows(p *flashkit.Problem, row, rows, k int) (lo, n int) {
	first, _ := p.Queries(k)
	_, last := p.Queries(min(k+pairLanes, x.to) - 1)
	lo = max(first-row, 0) &^ (tileStep - 1)
	return lo, min(upToTiles(last-row), rows) - lo
}

// setMasks sets the masks of n rows, and that of one more to nothing if the last pair
// lacks it, for the panel from key k on.
func (x *gradPanels) setMasks(p *flashkit.Problem, masks []uint32, row, n, k int) {
	keys := min(pairLanes, x.to-k)
	_, end := p.Keys(row)
	begin, _ := p.Keys(row + n - 1)
	setKeyMasks(p, masks[:n], row, k, keys, pairLanes, begin <= k && k+keys <= end)
	if n%2 == 1 {
		masks[n] = 0
	}
}

// store writes dK or dV, from panels of columns in the lanes times by.
func (x *gradPanels) store(j *job, t *flashkit.Tensor, panels, rows, by []float32) {
	dim := t.Shape()[3]
	padded := pad(dim)
	for k := x.from; k < x.to; k += pairLanes {
		if j.canceled() {
			return
		}
		avx512Lanes.fromLanes(rows, padded, panels[(k-x.from)*upToTiles(dim):], padded, by)
		avx512Lanes.storeRows(t, x.b, x.g, k, min(pairLanes, x.to-k), rows, padded)
	}
}
