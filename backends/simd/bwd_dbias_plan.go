//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

const (
	biasRun   = 512 // blocks that add to the same dBias in one float32 run
	maxPanels = 16  // most panels of a block
	biasPart  = 64  // keys whose dBias is stored at a time, if its kind is rowBias
)

// tilesFirst reports whether a block visits one tile of query rows in all its query heads before
// the next tile. It does so if heads share biases and rows do not. The biases of a tile then stay
// in cache for all heads, and blocks that add to the same dBias wait less for one another. The
// order of tiles affects the bits of dK and dV, so it must not depend on whether dBias is
// requested.
func (pl *plan) tilesFirst() bool {
	if !pl.p.Score.Bias || pl.call.Args == nil {
		return false
	}
	s := pl.call.Args.Bias.Shape()
	return s[1] == 1 && s[2] != 1
}

// biasSums returns the number of floats of shared workspace for sums of dBias. If the kind is
// rowBias, these sums are float64. Otherwise these sums are float32. For a 16-bit DBias they are
// all sums. For a float32 DBias they are the sums of finished runs, see biasRuns.
func (pl *plan) biasSums() int {
	kind := pl.biasKind()
	if kind == noBias || kind == ownBias {
		return 0
	}
	t := &pl.call.Args.DBias
	s := t.Shape()
	n := s[0] * s[1] * s[2] * s[3]
	switch {
	case kind == rowBias:
		return 2*n + 1
	case t.DType() != flashkit.Float32 || pl.biasRuns():
		return n
	}
	return 0
}

// biasRuns reports whether dBias is summed in runs, float32 partial sums of biasRun blocks each.
// Runs are used if more than biasRun blocks may add to an element, and Q, K and V are float32. With
// 16-bit Q, K and V, rounding O to 16 bits usually causes a larger error of dBias than a long
// float32 sum.
func (pl *plan) biasRuns() bool {
	s, n := pl.call.Args.DBias.Shape(), 1
	if s[0] == 1 {
		n *= min(pl.p.Batch, biasRun+1)
	}
	if s[1] == 1 {
		n *= min(pl.p.Heads, biasRun+1)
	}
	return pl.p.DType == flashkit.Float32 && n > biasRun
}

// biasGradFloats returns the workspace of a biasGrad, in floats.
func (pl *plan) biasGradFloats(lanes int) int {
	switch pl.biasKind() {
	case ownBias:
		return pl.rows * lanes
	case pairBias:
		return pl.rows * pl.keys
	case rowBias:
		return pl.rows*lanes + lanes + 2*pl.keys + 1
	}
	return 0
}

// counterCount returns the number of progress counters for the given number of blocks.
func (pl *plan) counterCount(blocks int) int {
	if kind := pl.biasKind(); kind == pairBias || kind == rowBias {
		return 2 * blocks
	}
	return blocks
}

// biasItems returns the number of items of the phase that clears dBias before the blocks run. The
// phase that writes dBias after the blocks has the same number of items.
func (pl *plan) biasItems() int {
	kind := pl.biasKind()
	if kind == noBias || kind == ownBias && !pl.ragged && pl.p.Band == (flashkit.Band{}) {
		return 0
	}
	s := pl.call.Args.DBias.Shape()
	return s[0] * s[1] * ceilDiv(s[2], pl.rows)
}
