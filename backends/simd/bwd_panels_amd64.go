//go:build !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// gradPanels is the keys of an item of an AMX backward pass, with dK and dV, in panels of one key
// per lane.
type gradPanels struct {
	keyRange
	gradSum // [panels][dim][lanes]
	mask    rowMask
	score   gradScore
}

// newGradPanels returns the panels of an item. by is the factor of dS under score features.
func newGradPanels(j *job, ws *pool.Arena, item int, by float64) gradPanels {
	r := keyRange{predecessor: -1}
	r.findKeys(&j.plan, item)
	return gradPanels{r, j.newGradSum(ws, upToTiles(j.p.Dim), upToTiles(j.p.VDim), r.N), avx512Lanes.newRowMask(j, ws), avx512Lanes.newGradScore(j, ws, by)}
}

// eachPanel calls panel for each panel in which the n rows of a tile see a key. Once the preceding
// block of the chain has added to dQ of the tile, it calls queries for the range of these keys. at
// is the tile's index in the order in which all blocks visit tiles.
func (x *gradPanels) eachPanel(j *job, item, row, n int, at int64, panel func(k int), queries func(lo, hi int)) {
	first, _ := x.Keys(row)
	_, last := x.Keys(row + n - 1)
	lo, hi := max(first&^(pairLanes-1), x.from), min(last, x.to)
	for k := lo; k < hi; k += pairLanes {
		if j.Canceled() {
			return
		}
		panel(k)
	}
	if !j.waitFor(x.predecessor, at) {
		return // canceled
	}
	if lo < hi {
		queries(lo, hi)
	}
	j.progress[item].Store(at + 1)
}

// hidesPart reports whether a mask hides from head h the whole part that contains key k. Parts have
// the given number of keys, a power of 2; no block is smaller.
func (x *gradPanels) hidesPart(j *job, h, k, keys int) bool {
	return j.hides(&x.seqTile, h, k&^(keys-1), k&^(keys-1)+keys)
}

// panelRows returns the rows of a tile that see the panel from key k on. lo is the first row,
// rounded down to a whole step. n is the number of rows, rounded up to whole steps or to the tile's
// last row.
func (x *gradPanels) panelRows(row, rows, k int) (lo, n int) {
	first, _ := x.Queries(k)
	_, last := x.Queries(min(k+pairLanes, x.to) - 1)
	lo = max(first-row, 0) &^ (tileStep - 1)
	return lo, min(upToTiles(last-row), rows) - lo
}

// setMasks sets the masks of n rows of head h for the panel from key k on. If n is odd it also
// clears the mask after the last row. It reports whether some row sees some key.
func (x *gradPanels) setMasks(masks []uint32, h, row, n, k int) bool {
	if n <= 0 {
		return false
	}
	keys := min(pairLanes, x.to-k)
	_, end := x.Keys(row)
	begin, _ := x.Keys(row + n - 1)
	setKeyMasks(&x.Seq, masks[:n], row, k, keys, pairLanes, begin <= k && k+keys <= end)
	if n%2 == 1 {
		masks[n] = 0
	}
	return x.mask.hide(masks[:n], x.b, h, row, k)
}

// store writes dK or dV to t. Each panel is [columns][lanes]. by has a factor per lane. rows is
// scratch.
func (x *gradPanels) store(j *job, t *flashkit.Tensor, panels, rows, by []float32) {
	dim := t.Shape()[3]
	padded := pad(dim)
	for k := x.from; k < x.to; k += pairLanes {
		if j.Canceled() {
			return
		}
		avx512Lanes.fromLanes(rows, padded, panels[(k-x.from)*upToTiles(dim):], padded, by)
		avx512Lanes.storeRows(t, x.KVBatch, x.g, x.K0+k, min(pairLanes, x.to-k), rows, padded)
	}
}
