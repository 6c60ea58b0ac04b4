package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A featurePlan is the part of the portable kernels, of calls with features.
type featurePlan struct {
	n, m       int // rows and keys of the longest sequence
	rows, keys int // of the largest tile
	// Items. Those of biases and sinks are tiles of DBias and heads of DSink.
	queryItems, keyItems, biasItems, sinkItems int
	// Each row of DBias belongs to one query row, whose item writes it, padding included.
	ownBias bool

	sequences int // that have spans in the tables
}

// planFeatures returns the part of the portable kernels of the plan of a call.
func planFeatures(c *flashkit.Call) featurePlan {
	pl := planned(c, (*plan).planFeatures)
	defer pl.forget()
	return pl.features
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
		f.keyItems = c.KVHeads * pl.keyTiles(tileK)
	}
	f.sequences = pl.sequences()
}

// tables returns the bytes of the tables of items.
func (f *featurePlan) tables(c *flashkit.Call) float64 {
	n := 1
	if c.Pass == flashkit.PassBackward {
		n = 2
	}
	return float64(n) * float64(f.sequences) * float64(unsafe.Sizeof(itemSpan{}))
}

// cut plans a call of a portable kernel and makes the tables of its items. The last rows of a causal mask see
// the most keys, and the first keys are seen by the most rows, so they come first.
func (pl *plan) cut() {
	pl.planFeatures()
	pl.byRow.cut(pl, true, tileQ, itemOrder{heads: pl.p.Heads, longestFirst: true, lastFirst: true})
	if pl.call.Pass == flashkit.PassBackward {
		pl.byKey.cut(pl, false, tileK, itemOrder{heads: pl.p.KVHeads, longestFirst: true})
	}
}

// rowTile returns the query rows of an item.
func (pl *plan) rowTile(item int) (t seqTile) {
	t.findRows(pl, item)
	return t
}

// keyTile returns the keys of an item.
func (pl *plan) keyTile(item int) (t seqTile) {
	t.findKeys(pl, item)
	return t
}
