//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

const (
	biasRun   = 512 // blocks that are added up in one float32, before those of the next
	maxPanels = 16  // of a block
	biasPart  = 64  // keys of a rowBias that are written at a time
)

// tilesFirst reports whether a block takes a tile of all heads before the next tile, as
// they share biases. It must not depend on whether dBias is wanted.
func (pl *plan) tilesFirst() bool {
	if !pl.p.Score.Bias || pl.call.Args == nil {
		return false
	}
	s := pl.call.Args.Bias.Shape()
	return s[1] == 1 && s[2] != 1
}

// biasSums returns the floats of what dBias is summed up in beside its tensor, of all
// workers: float64 for each key, float32 of a 16-bit tensor, or the runs before the one at hand.
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

// biasRuns reports whether so many blocks add to dBias that they do so in runs.
// Gradients of 16 bits need none.
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

// biasGradFloats returns the workspace of a biasGrad.
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

// progress returns the number of counters for the blocks.
func (pl *plan) progress(blocks int) int {
	if kind := pl.biasKind(); kind == pairBias || kind == rowBias {
		return 2 * blocks
	}
	return blocks
}

// biasItems returns how many items dBias has, before and after the blocks.
func (pl *plan) biasItems() int {
	kind := pl.biasKind()
	if kind == noBias || kind == ownBias && !pl.ragged && pl.p.Band == (flashkit.Band{}) {
		return 0
	}
	s := pl.call.Args.DBias.Shape()
	return s[0] * s[1] * ceilDiv(s[2], pl.rows)
}
