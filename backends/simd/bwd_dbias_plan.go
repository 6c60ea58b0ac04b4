//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

const (
	biasRun   = 512 // blocks that are summed in one float32 run
	maxPanels = 16  // most panels of a block
	biasPart  = 64  // keys of a rowBias that are stored at a time
)

// tilesFirst reports whether a block visits a tile in all heads before the next tile, since the
// heads share biases. It must not depend on whether dBias is requested.
func (pl *plan) tilesFirst() bool {
	if !pl.p.Score.Bias || pl.call.Args == nil {
		return false
	}
	s := pl.call.Args.Bias.Shape()
	return s[1] == 1 && s[2] != 1
}

// biasSums returns the floats in which all workers sum dBias outside its tensor. They hold float64
// per key, float32 for a 16-bit tensor, or past runs.
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

// biasRuns reports whether dBias is summed in runs because many blocks add to it. 16-bit gradients
// need none.
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

// counterCount returns the number of counters for the blocks.
func (pl *plan) counterCount(blocks int) int {
	if kind := pl.biasKind(); kind == pairBias || kind == rowBias {
		return 2 * blocks
	}
	return blocks
}

// biasItems returns the items of dBias before and after the blocks.
func (pl *plan) biasItems() int {
	kind := pl.biasKind()
	if kind == noBias || kind == ownBias && !pl.ragged && pl.p.Band == (flashkit.Band{}) {
		return 0
	}
	s := pl.call.Args.DBias.Shape()
	return s[0] * s[1] * ceilDiv(s[2], pl.rows)
}
