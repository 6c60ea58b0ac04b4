package simd

import "github.com/flashkit-go/flashkit"

// A portablePlan is the part of the portable kernels, of calls with features.
type portablePlan struct {
	n, m       int // rows and keys of the longest sequence
	rows, keys int // of the largest tile
	// Items. Those of biases and sinks are tiles of DBias and heads of DSink.
	queryItems, keyItems, biasItems, sinkItems int
	// Each row of DBias belongs to one query row, whose item writes it, padding included.
	ownBias bool
}

// planFeatures plans the tiles of a portable kernel. Without arguments, sequences are as long as they may be.
func (pl *plan) planFeatures() {
	c, f := pl.call, &pl.features
	if c.Args != nil && c.Pass == flashkit.PassBackward {
		if t := &c.Args.DBias; !t.IsZero() {
			s := t.Shape()
			f.ownBias = s == [4]int{c.Batch, c.Heads, c.QLen, c.KVLen}
			if !f.ownBias {
				f.biasItems = s[0] * s[1] * ceilDiv(s[2], tileQ) * ceilDiv(s[3], tileK)
			}
		}
		if !c.Args.DSink.IsZero() {
			f.sinkItems = c.Heads
		}
	}
	for b := range pl.sequences() {
		s := c.Seq(b)
		f.n, f.m = max(f.n, s.N), max(f.m, s.M)
	}
	f.rows, f.keys = min(tileQ, f.n), min(tileK, f.m)
	if f.queryItems = c.Heads * pl.rowTiles(tileQ); c.Pass == flashkit.PassBackward {
		f.keyItems, pl.tables = c.KVHeads*pl.keyTiles(tileK), 2
	}
}

// cutFeatures makes the tables of a planned call. The last rows of a causal mask see the most keys, and
// the first keys are seen by the most rows, so they come first.
func (pl *plan) cutFeatures() {
	pl.byRow.cut(pl, true, tileQ, itemOrder{heads: pl.p.Heads, longestFirst: true, lastFirst: true})
	if pl.call.Pass == flashkit.PassBackward {
		pl.byKey.cut(pl, false, tileK, itemOrder{heads: pl.p.KVHeads, longestFirst: true})
	}
}
