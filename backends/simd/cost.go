package simd

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// pace is the cost of a kernel's work on one core, in nanoseconds per unit. The figures come from
// one server; package dispatch corrects their sum by its own measurements.
type pace struct {
	start   float64 // beginning and ending a part of an item: a tile, a block or a row
	tile    float64 // backward: preparing and finishing a tile of query rows
	flop    float64 // a floating point operation of a product, idle lanes included
	pair    float64 // a pair of a row and a key: mainly the exponential
	element float64 // an element of a row that is loaded once, or stored
	key     float64 // backward: added to element for an element of K or V
	visit   float64 // backward: an element of dK or dV, for each tile of query rows that adds to it
	pack    float64 // an element that is loaded repeatedly: forward, of K or V for each item; backward, of Q or dO for each visit of a tile; decode, of Q or O
	widen   float64 // added to pack for an element of a 16-bit type
	feature float64 // forward: factor of featureTimes
	few     bool    // forward: the routine is attendTile, which skips idle lanes in products
	narrow  slowing // of an AVX-512 kernel: applies if wideRate is 1
	fast    slowing // of an AVX512-BF16 kernel: applies if pairRate is 2
}

// slowing has factors of a pace, which are below 1 for a faster processor: products of flop and pair, other of
// start, tile, key and pack. Elements that are read once, or widened, take as long.
type slowing struct{ products, other float64 }

// slowed returns c with its times multiplied by the factors of by.
func (c pace) slowed(by slowing) pace {
	for _, t := range []*float64{&c.flop, &c.pair} {
		*t *= by.products
	}
	for _, t := range []*float64{&c.start, &c.tile, &c.key, &c.visit, &c.pack} {
		*t *= by.other
	}
	return c
}

// Costs that all kernels share, in nanoseconds.
const (
	callTime  = 500  // a call, outside its phases
	helpTime  = 1100 // a helper that joins a phase and leaves
	visitTime = 280  // a visit of a backward tile of query rows by a block of keys
	bandTile  = 90   // forward, few: masks of a tile's band, and a check that hidden values are finite
	clearByte = .04  // to clear a byte of a gradient, in a row or key without a visible pair
)

// timedPhase is the cost of items that may run in parallel.
type timedPhase struct {
	items       int
	nanoseconds float64 // of all items
	longest     float64 // of the longest item, if above the mean
}

// uneven returns a phase that takes equal + other nanoseconds. All items have equal parts of the
// time equal. The argument most is the longest item's fraction of the time other.
func uneven(items int, equal, other, most float64) timedPhase {
	return timedPhase{items, equal + other, equal/float64(max(1, items)) + other*most}
}

// crowding is the slowdown minus 1 with 16 or more workers: most cores then run two threads, and
// all share the memory. It is the same for all CPU kernels, so it only matters when the CPU is
// compared with a device.
const crowding = .5

// cost returns the time of a call whose phases run one after the other.
func cost(c *flashkit.Call, phases ...timedPhase) time.Duration {
	t, n := float64(callTime), pool.WorkersOf(c)
	for _, f := range phases {
		t += f.time(n)
	}
	t *= 1 + crowding*min(1, float64(n-1)/15)
	return time.Duration(min(t, math.MaxInt64/2))
}

// time returns the nanoseconds of a phase on up to n workers. An item runs on one worker. So the
// phase takes at least the time of the busiest worker, and at least the time of the longest item.
func (f timedPhase) time(n int) float64 {
	if f.items <= 0 {
		return 0
	}
	n = min(n, f.items)
	t := max(f.longest, f.nanoseconds*float64(ceilDiv(f.items, n))/float64(f.items))
	return t + helpTime*float64(n-1)
}

// seqOf returns the sequence of each batch element of a problem with equal lengths.
func seqOf(p *flashkit.Problem) flashkit.Seq {
	lo, hi := p.Band.Diagonals(p.QLen, p.KVLen)
	return flashkit.Seq{N: p.QLen, M: p.KVLen, Lo: lo, Hi: hi}
}

// seenRows returns the number of query rows that see at least one key.
func seenRows(p *flashkit.Problem) int {
	s := seqOf(p)
	return seeingRows(&s)
}

// visibleKeys returns the number of keys that at least one query row sees.
func visibleKeys(p *flashkit.Problem) int {
	s := seqOf(p)
	first, end := seenOf(&s)
	return end - first
}

// touchedKeys returns the number of keys of the blocks that have a visible key. Blocks begin at multiples of
// the given number of keys.
func touchedKeys(p *flashkit.Problem, keys int) int {
	s := seqOf(p)
	first, end := seenOf(&s)
	return (ceilDiv(end, keys) - first/keys) * keys
}

// pairs returns the number of pairs of a row and a key that tiles of rows x keys compute, over all
// heads. It includes padding, and pairs outside the band in the tiles at its edges.
func pairs(p *flashkit.Problem, rows, keys int) float64 { return foldedPairs(p, 1, rows, keys) }

// foldedPairs returns pairs for tiles of rows of fold heads. Rows of different heads are in the same tiles
// only if the heads have fewer rows than a tile.
func foldedPairs(p *flashkit.Problem, fold, rows, keys int) float64 {
	seen, edge := fold*seenRows(p), min(rows, seenRows(p))
	if edge < rows {
		edge = ceilDiv(min(rows, seen), fold)
	}
	n, m, all := ceilDiv(seen, rows)*rows, touchedKeys(p, keys), ceilDiv(p.KVLen, keys)*keys
	sum := float64(fold) * float64(p.Area()) * float64(n) / float64(max(1, seen)) * float64(all) / float64(max(1, p.KVLen))
	for _, side := range [2]int{p.Band.Left(), p.Band.Right()} {
		if side != flashkit.Unlimited {
			sum += float64(n) * float64(edge+min(keys, p.KVLen)-2) / 2
		}
	}
	return float64(p.Batch*p.Heads/fold) * min(sum, float64(n)*float64(m))
}

// readKeys returns the number of keys that tiles of the given number of rows of fold heads read, over all heads.
// It counts a key once for each tile that reads it. Tiles read keys in steps of step.
func readKeys(p *flashkit.Problem, fold, rows, step int) float64 {
	rows = max(1, min(rows, fold*p.QLen))
	return foldedPairs(p, fold, rows, step) / float64(rows)
}

// readRows returns the number of rows that blocks of the given number of keys read, over all heads.
// It counts a row once for each block that reads it. Blocks read rows in steps of step.
func readRows(p *flashkit.Problem, step, keys int) float64 {
	keys = max(1, min(keys, p.KVLen))
	return pairs(p, step, keys) / float64(keys)
}

// paddedDims returns the sum of both head dims, each rounded up to a multiple of step: tile products
// take whole steps.
func paddedDims(p *flashkit.Problem, step int) float64 {
	return float64((ceilDiv(p.Dim, step) + ceilDiv(p.VDim, step)) * step)
}

// rowElements returns the number of elements of Q and O. Rows are rounded up to a multiple of lanes.
func rowElements(p *flashkit.Problem, lanes int) float64 {
	return float64(p.Batch*p.Heads) * float64(ceilDiv(p.QLen, lanes)*lanes) * float64(p.Dim+p.VDim)
}

// converted returns x if K and V must be widened, or 0 if K and V are float32. x is a number of
// elements of K and V.
func converted(p *flashkit.Problem, x float64) float64 {
	if p.KVType() == flashkit.Float32 {
		return 0
	}
	return x
}

// forward returns the phases of a planned forward pass. The number of rows of a tile is rounded up
// to a multiple of lanes, and its number of keys to a multiple of step. The argument sharing is the
// number of query rows that share one load of a key from memory. These rows belong to one item, or
// to neighboring items that find the key in cache.
func (c *pace) forward(pl *plan, lanes, step, sharing int) [3]timedPhase {
	items := pl.work[0].Items
	f := ofSequences(pl.call, func(p flashkit.Problem) timedPhase {
		return c.forwardOf(&p, c.feature*forwardTime(pl.call), pl.fold, lanes, step, items, pl.rows, sharing)
	})
	f.items = items
	return [3]timedPhase{f}
}

// ofSequences returns the phase with the work of all sequences. phaseOf returns the phase of
// sequences of equal lengths.
func ofSequences(call *flashkit.Call, phaseOf func(flashkit.Problem) timedPhase) timedPhase {
	p := call.Problem
	if equalLengths(call) {
		return phaseOf(p)
	}
	p.Batch = 1
	var sum timedPhase
	for b := range call.Batch {
		s := call.Seq(b)
		p.QLen, p.KVLen = s.N, s.M
		f := phaseOf(p)
		sum.nanoseconds += f.nanoseconds
		sum.longest = max(sum.longest, f.longest)
	}
	return sum
}

// forwardOf does the work of forward for sequences of equal lengths. feature is the time of the
// score features per pair.
func (c *pace) forwardOf(p *flashkit.Problem, feature float64, fold, lanes, step, items, rows, sharing int) timedPhase {
	heads, dims := p.Batch*p.Heads/fold, paddedDims(p, step)
	read := readKeys(p, fold, sharing, step) * dims
	tiles, all := ceilDiv(fold*p.QLen, lanes), foldedPairs(p, fold, lanes, step)
	tile, products := float64(tiles)*(c.start+float64(lanes*(p.Dim+p.VDim))*c.element), all*dims
	if c.few { // scores of whole vectors of rows, and values of rows
		tile -= float64((tiles*lanes-fold*p.QLen)*p.VDim) * c.element
		seen := fold * seenRows(p)
		products = foldedPairs(p, fold, lanes/2, step)*float64(p.Dim) + all*float64(seen)/float64(max(1, ceilDiv(seen, lanes)*lanes))*float64(p.VDim)
		if p.Band != (flashkit.Band{}) {
			tile += float64(tiles) * bandTile
		}
	}
	tile *= float64(heads)
	pair := products*2*c.flop + all*(c.pair+feature) + read*c.pack + converted(p, read)*c.widen
	return uneven(items, tile, pair, share(p, ceilDiv(rows, fold), p.QLen, p.KVLen)/float64(max(1, heads)))
}

// backward returns the phases of a backward pass. An item is a block of keys, which are in the
// lanes. It visits tiles of query rows. At the edges of the band, the rows of a block are rounded
// up to a multiple of edge.
func (c *pace) backward(call *flashkit.Call, lanes, edge int, f bwdCut) [3]timedPhase {
	if equalLengths(call) {
		return c.backwardOf(&call.Problem, vectorTime(call), lanes, edge, f)
	}
	p := call.Problem
	p.Batch = 1
	var sum [3]timedPhase
	for b := range call.Batch {
		s, of := call.Seq(b), f
		p.QLen, p.KVLen = s.N, s.M
		of.tiles, of.blocks = p.Heads*ceilDiv(s.N, f.rows), p.KVHeads*ceilDiv(s.M, f.keys)
		for i, x := range c.backwardOf(&p, vectorTime(call), lanes, edge, of) {
			sum[i].nanoseconds += x.nanoseconds
			sum[i].longest = max(sum[i].longest, x.longest)
		}
	}
	sum[0].items, sum[1].items = f.tiles, f.blocks
	if f.finish {
		sum[2].items = f.tiles
	}
	return sum
}

// unseenRows returns the time of the rows of a backward pass that see no key: delta is computed, and dQ is cleared.
func unseenRows(p *flashkit.Problem) float64 {
	const element, halfElement = .3, .7 // of a row of Q and dO
	elements := float64(p.Batch*p.Heads) * float64(p.QLen-seenRows(p)) * float64(p.Dim+p.VDim)
	if p.DType != flashkit.Float32 {
		return elements * halfElement
	}
	return elements * element
}

const tileStep = 32 // rows or columns in a product of AMX tiles

// backwardOf does the work of backward for sequences of equal lengths. feature is the time of the
// score features per pair.
func (c *pace) backwardOf(p *flashkit.Problem, feature float64, lanes, edge int, f bwdCut) [3]timedPhase {
	const products = 5
	heads, dims := p.Batch*p.KVHeads, paddedDims(p, edge)
	read := readRows(p, edge, f.keys) * dims
	visits := pairs(p, f.rows, f.keys) / float64(f.rows*f.keys)
	visit := visitTime + float64(min(f.keys, p.KVLen)*(p.Dim+p.VDim))*c.visit
	tile := timedPhase{items: f.tiles, nanoseconds: float64(f.tiles)*c.tile + rowElements(p, lanes)*c.element}
	tile.nanoseconds += unseenRows(p)
	touched := touchedKeys(p, f.keys) // of the other keys, dK and dV are cleared
	loaded, cleared := ceilDiv(min(touched, p.KVLen), lanes)*lanes, max(0, p.KVLen-touched)*p.DType.Size()
	block := float64(ceilDiv(touched, f.keys))*c.start + float64(p.Dim+p.VDim)*(float64(loaded)*(c.element+c.key)+float64(cleared)*clearByte)
	block *= float64(heads)
	pair := pairs(p, edge, lanes)*(products*dims*c.flop+c.pair+feature) + visits*visit + read*c.pack + converted(p, read)*c.widen
	blocks := uneven(f.blocks, block, pair, share(p, f.keys, p.KVLen, p.QLen)/float64(max(1, heads)))
	if !f.finish {
		return [3]timedPhase{tile, blocks}
	}
	tile.nanoseconds /= 2 // the last phase has the other half
	return [3]timedPhase{tile, blocks, tile}
}

// bwdCut is the partition of a backward pass.
type bwdCut struct {
	rows, keys    int  // query rows of a tile, keys of a block
	tiles, blocks int  // numbers of tiles and blocks, over all heads
	finish        bool // a last phase visits each tile again
}
