//go:build (amd64 || arm64) && !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// If each pair of a query row and a key has its own bias, the block of keys that computes a pair
// writes the pair's dBias. If heads or sequences share a bias, blocks of the same keys add to the
// same sum one after another. The order of these blocks is by KV head, then by sequence. A block
// adds a tile only after the previous block in this order has added the same tile. Blocks add to dQ
// in the same way, see bwd_lanes.go. So nothing is added atomically, and the bits do not depend on
// the workers.
//
// If all query rows share a bias, each block first sums its own dBias in float64. It adds these sums
// to the shared sums after each head, or after the last head if heads share the bias.

// biasGrad is dBias of a tile of query rows and a block of keys.
type biasGrad struct {
	kind  biasKind
	lanes int
	rows  int
	db    []float32         // dBias of the pairs: [rows][lanes], or with pairBias [panels][rows][lanes]
	sum   []float32         // [lanes], scratch
	sums  []float64         // [keys], dBias summed over all rows so far
	seen  [maxPanels][2]int // for each panel, the rows of the tile for which db was computed
}

func newBiasGrad(j *job, ws *pool.Arena, lanes int) biasGrad {
	g := biasGrad{kind: j.biasKind(), lanes: lanes, rows: j.rows}
	switch g.kind {
	case ownBias:
		g.db = ws.Take(j.rows * lanes)
	case pairBias:
		g.db = ws.Take(j.rows * j.keys)
	case rowBias:
		g.db, g.sum = ws.Take(j.rows*lanes), ws.Take(lanes)
		g.sums = doubles(ws.Take(2*j.keys + 1))[:j.keys]
		clear(g.sums)
	}
	return g
}

// begin prepares g for a tile of query rows.
func (g *biasGrad) begin() { clear(g.seen[:]) }

// panel returns the address at which a routine must store dBias of the tile's rows [lo, lo+n) and
// one panel of keys. at is the index of the panel's first key in the block. panel returns nil if
// DBias is not requested.
func (g *biasGrad) panel(at, lo, n int) *float32 {
	if g.kind == noBias {
		return nil
	}
	seen := &g.seen[at/g.lanes]
	if seen[1] != lo || lo == 0 { // else these rows continue the panel's previous rows
		seen[0] = lo
	}
	seen[1] = lo + n
	if g.kind == pairBias {
		return &g.db[at*g.rows+lo*g.lanes]
	}
	return &g.db[0]
}

// storePanel processes dBias of the tile's rows [lo, lo+n) and the panel that begins at key k. A
// routine has stored this dBias at the address that the method panel returned. storePanel writes
// dBias to the tensor DBias if g.kind is ownBias, and adds it to g.sums if g.kind is rowBias.
func (g *biasGrad) storePanel(j *job, t *gradScore, x *keyRange, k, lo, n int) {
	isa := t.isa
	switch keys := min(g.lanes, x.to-k); g.kind {
	case ownBias:
		d := &j.args.DBias
		at := d.Offset(x.b, t.h, t.from+lo) + k
		if d.DType() == flashkit.Float32 && keys == g.lanes {
			isa.copyPanel(d.Float32s()[at:], rowStep(d), g.db, n)
			return
		}
		for r := range n {
			isa.store(d, at+r*rowStep(d), g.db[r*g.lanes:][:keys])
		}
	case rowBias:
		clear(g.sum)
		isa.addProductT(&g.sum[0], g.lanes, &ones[0], 0, &g.db[0], g.lanes, 1, n, g.lanes)
		for i, y := range g.sum[:keys] {
			g.sums[k-x.from+i] += float64(y)
		}
	}
}

// If the kind is pairBias, endTile adds dBias of a block of keys and a tile of query rows to the
// shared sums. If the kind is ownBias, endTile only calls clearUnseen. The tile is tile t of a
// query head, and c is this head's index among the query heads of the KV head. at is the tile's
// index in the order in which all blocks visit tiles.
func (g *gradScore) endTile(j *job, x *keyRange, item, c, t int, at int64) {
	if g.db.kind == ownBias {
		g.clearUnseen(j, x)
	}
	if g.db.kind != pairBias {
		return
	}
	turn := j.biasTurn(x, item, c, t)
	if !j.waitForBias(turn) {
		return // canceled
	}
	s := j.args.DBias.Shape()
	db, d := &g.db, j.biasSum(x.b%s[0], g.h%s[1], g.from, x.from)
	if turn.beginsRun() && d.past != nil {
		d.endRun(g.n, x.to-x.from)
	}
	for k := x.from; k < x.to; k += db.lanes {
		i, keys := (k-x.from)/db.lanes, min(db.lanes, x.to-k)
		lo, hi := db.seen[i][0], db.seen[i][1]
		panel := db.db[(i*db.rows+lo)*db.lanes:]
		if sum := d.sum[lo*d.step+k-x.from:]; keys == db.lanes && lo < hi {
			g.isa.addRowsOf(sum, d.step, panel, hi-lo)
		} else {
			for r := range hi - lo {
				for c, y := range panel[r*db.lanes:][:keys] {
					sum[r*d.step+c] += y
				}
			}
		}
	}
	j.passBias(item, at)
}

// clearUnseen zeros dBias of the tile where no routine has stored it: in rows that see no key of a
// panel.
func (g *gradScore) clearUnseen(j *job, x *keyRange) {
	d := &j.args.DBias
	for k := x.from; k < x.to; k += g.db.lanes {
		seen := g.db.seen[(k-x.from)/g.db.lanes]
		for r := range g.n {
			if r < seen[0] || r >= seen[1] {
				clearElements(d, d.Offset(x.b, g.h, g.from+r)+k, min(g.db.lanes, x.to-k))
			}
		}
	}
}

// sharesHeads is true in two cases. If the kind is not rowBias, endHead adds nothing. If all heads
// share the bias, endHead adds sums only after the last head.
func (b *biasGrad) sharesHeads(j *job) bool { return b.kind != rowBias || j.args.DBias.Shape()[1] == 1 }

// endHead adds a block's sums over all rows of head c to the shared sums, if the kind is rowBias. If
// heads share the bias, endHead adds only after the last head, and then the sums over all heads.
func (g *gradScore) endHead(j *job, x *keyRange, item, c int) {
	if g.db.kind != rowBias {
		return
	}
	t, group := &j.args.DBias, j.p.Heads/j.p.KVHeads
	shared := t.Shape()[1] == 1
	if shared && c < group-1 {
		return
	}
	first := c
	if shared {
		first = 0
	}
	if !j.waitForBias(j.biasTurn(x, item, first, -1)) {
		return // canceled
	}
	s := t.Shape()
	sums := j.keySums()[((x.b%s[0])*s[1]+(x.g*group+c)%s[1])*s[3]+x.from:]
	for i := range x.to - x.from {
		sums[i] += g.db.sums[i]
	}
	clear(g.db.sums)
	j.passBias(item, int64(c))
}

// biasTurn is the position of a block in the order of the blocks that add to the same dBias.
type biasTurn struct {
	item, at       int // the block waits until this item has passed index at, of a tile or of a head; if item is negative, the block does not wait
	number, before int // positions in the order, of this block and of the block before it; before is negative if there is none
}

// beginsRun reports whether the block begins a new float32 partial sum, or run. A run has biasRun
// blocks. beginsRun is false for the first block of all.
func (t *biasTurn) beginsRun() bool { return t.before >= 0 && t.number/biasRun != t.before/biasRun }

// biasTurn returns an item's position in the order of additions to dBias. The item adds dBias of
// tile t of head c. If t is negative, the item adds its sums over all rows of head c.
func (j *job) biasTurn(x *keyRange, item, c, t int) biasTurn {
	p, s := &j.p, j.args.DBias.Shape()
	group, span := p.Heads/p.KVHeads, x.b // sequences add in item order
	if j.ragged {
		span = j.byKey.Place(item)
	}
	turn, each, g, last, step := biasTurn{item: -1, before: -1}, 1, x.g, c, p.KVHeads
	if s[1] == 1 { // heads share a bias
		turn.number, each = x.g*group+c, p.Heads
		g, last, step = p.KVHeads-1, group-1, 1
	}
	if s[0] == 1 {
		turn.number += span * each
	}
	switch {
	case s[1] == 1 && c > 0:
		turn.before = turn.number - 1
	case s[1] == 1 && x.g > 0:
		turn.item, turn.at, turn.before = item-1, j.place(x.N, last, t), turn.number-1
	case s[0] != 1 || span == 0:
	case !j.ragged:
		turn.item, turn.at, turn.before = item-step, j.place(x.N, last, t), turn.number-1
	default:
		for i := span - 1; i >= 0 && turn.item < 0; i-- {
			y, z := &j.byKey.Spans[i], j.tileOf(j.byKey.Spans[i].B, 0, g)
			z.setKeys(&j.plan, x.from, j.keys)
			if first, end := j.visited(&z); z.from < z.to && (t < 0 || first <= t && t < end) {
				turn.item, turn.at = y.Items+x.from/j.keys*y.Heads+g, j.place(z.N, last, t)
				turn.before = i * each
				if s[1] == 1 {
					turn.before += p.Heads - 1
				}
			}
		}
	}
	return turn
}

// place returns the index of tile t of head c in the order in which a block visits tiles. n is the
// number of query rows of the sequence. If t is negative, place returns c.
func (j *job) place(n, c, t int) int {
	switch tiles := ceilDiv(n, j.rows); {
	case t < 0:
		return c
	case j.tilesFirst():
		return (tiles-1-t)*(j.p.Heads/j.p.KVHeads) + c
	default:
		return c*tiles + tiles - 1 - t
	}
}

// j.progress has a counter of dQ for each item, then a counter of dBias for each item.

func (j *job) waitForBias(t biasTurn) bool {
	return t.item < 0 || j.waitFor(j.Items+t.item, int64(t.at))
}

func (j *job) passBias(item int, at int64) { j.progress[j.Items+item].Store(at + 1) }
