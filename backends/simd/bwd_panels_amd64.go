//go:build !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// gradPanels is the block of keys of an item of an AMX backward pass, with dK and dV of these keys.
// The block is cut into panels of one key per lane.
type gradPanels struct {
	keyRange
	gradSum // [panels][dim][lanes]
	mask    rowMask
	score   gradScore
}

// newGradPanels returns the panels of an item. by is the factor of dS in a call with score features
// or dropout.
func newGradPanels(j *job, ws *pool.Arena, item int, by float64) gradPanels {
	r := keyRange{predecessor: -1}
	r.findKeys(&j.plan, item)
	return gradPanels{r, j.newGradSum(ws, upToTiles(j.p.Dim), upToTiles(j.p.VDim), &r), avx512Lanes.newRowMask(j, ws), avx512Lanes.newGradScore(j, ws, by)}
}

// eachPanel calls the function panel for each panel of keys that a tile sees. The tile has n query
// rows and begins at row number row. eachPanel then waits until the preceding block of the chain
// has added to dQ of the tile. It then calls the function queries for the keys [lo, hi) of these
// panels. at is the tile's index in the order in which all blocks visit tiles.
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

// hidesPart reports whether mask or ranges hide all keys of one part from the tile of head h: the part
// that contains key k. A part has the given number of keys, a power of 2, and begins at a multiple of this
// number. No block is smaller than a part.
func (x *gradPanels) hidesPart(j *job, h, k, keys int) bool {
	return x.mask.hidesPart(j, &x.seqTile, h, k&^(keys-1), k&^(keys-1)+keys)
}

// panelRows returns the range of a tile's rows that see the panel that begins at key k. The tile
// begins at row number row and has the given number of rows. lo is the range's first row in the
// tile, rounded down to a multiple of tileStep. n is the range's number of rows. The range's end is
// rounded up to a multiple of tileStep, or is the end of the tile.
func (x *gradPanels) panelRows(row, rows, k int) (lo, n int) {
	first, _ := x.Queries(k)
	_, last := x.Queries(min(k+pairLanes, x.to) - 1)
	lo = max(first-row, 0) &^ (tileStep - 1)
	return lo, min(upToTiles(last-row), rows) - lo
}

// setMasks sets masks to the visible keys of n rows of head h, in the panel that begins at key k.
// If n is odd, setMasks also clears the element of masks after the last row. It reports whether any
// row sees any key.
func (x *gradPanels) setMasks(j *job, masks []uint32, h, row, n, k int) bool {
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
	return x.mask.hide(masks[:n], x.b, h, row, k) && x.mask.hideByRanges(j, masks[:n], x.b, h, row, k, keys)
}

// store writes the slice panels, which is dK or dV of the block, to tensor t. Each panel is
// [columns][lanes]. by has a factor for each lane. rows is scratch.
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
