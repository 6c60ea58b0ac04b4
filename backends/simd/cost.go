package simd

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// A pace is what the parts of a kernel's work take on one core, in nanoseconds.
// The figures are those of one server; package dispatch corrects the sum by what
// it knows of the machine.
type pace struct {
	start   float64 // to begin and end an item's part: a tile, a block, or a row
	flop    float64 // a floating point operation of a product, idle lanes included
	pair    float64 // a row and a key: the exponential, and what goes with it
	element float64 // an element of a row that is loaded once, or stored
	pack    float64 // one that an item loads again: of K or V forward, of Q or dO for a tile of them backward
	widen   float64 // more, where that is of a 16-bit type
	feature float64 // how many times as long as featureTimes says features take, forward
}

// What all kernels take, in nanoseconds.
const (
	callTime = 500  // a call, before and after its phases
	helpTime = 1100 // a helper, to come to a phase and to leave
	tileTime = 280  // a backward tile of query rows, to prepare it, to visit it from a block, or to finish it
)

// A timedPhase is items that run at the same time, and what they take.
type timedPhase struct {
	items       int
	nanoseconds float64 // of all items
	longest     float64 // of the longest one, where it takes more than others
}

// uneven returns the phase of items that have equal parts of the first time, and up to
// the given part of the second.
func uneven(items int, equal, other, most float64) timedPhase {
	return timedPhase{items, equal + other, equal/float64(max(1, items)) + other*most}
}

// crowding is how much longer everything takes where sixteen processors or more work:
// two of them share a core, mostly, and all share the memory. It ranks no kernel of
// the backend against another, but the processor against a device.
const crowding = .5

// cost returns the time of a call: that of its phases, one after the other.
func cost(c *flashkit.Call, phases ...timedPhase) time.Duration {
	t, n := float64(callTime), pool.WorkersOf(c)
	for _, f := range phases {
		t += f.time(n)
	}
	t *= 1 + crowding*min(1, float64(n-1)/15)
	return time.Duration(min(t, math.MaxInt64/2))
}

// time returns the nanoseconds of a phase on up to n workers. Items are whole, so the
// workers that have one more than others count, and so does the longest item.
func (f timedPhase) time(n int) float64 {
	if f.items <= 0 {
		return 0
	}
	n = min(n, f.items)
	t := max(f.longest, f.nanoseconds*float64(ceilDiv(f.items, n))/float64(f.items))
	return t + helpTime*float64(n-1)
}

// seenRows returns how many rows see a key.
func seenRows(p *flashkit.Problem) int {
	if p.KVLen == 0 {
		return 0
	}
	first, _ := p.Queries(0)
	_, end := p.Queries(p.KVLen - 1)
	return max(0, end-first)
}

// pairs returns how many rows and keys meet in all heads, if they are taken in
// tiles of so many rows and so many keys: beyond the last ones, and beyond the
// edges of the band, a tile computes what nobody sees.
func pairs(p *flashkit.Problem, rows, keys int) float64 {
	seen := seenRows(p)
	n, m := ceilDiv(seen, rows)*rows, ceilDiv(p.KVLen, keys)*keys
	met := float64(p.Area()) * float64(n) / float64(max(1, seen)) * float64(m) / float64(max(1, p.KVLen))
	for _, side := range [2]int{p.Band.Left(), p.Band.Right()} {
		if side != flashkit.Unlimited {
			met += float64(n) * float64(min(rows, seen)+min(keys, p.KVLen)-2) / 2
		}
	}
	return float64(p.Batch*p.Heads) * min(met, float64(n)*float64(m))
}

// readKeys returns how many keys tiles of so many rows read in all heads.
func readKeys(p *flashkit.Problem, rows, step int) float64 {
	rows = max(1, min(rows, p.QLen))
	return pairs(p, rows, step) / float64(rows)
}

// readRows returns how many rows blocks of so many keys read in all heads.
func readRows(p *flashkit.Problem, step, keys int) float64 {
	keys = max(1, min(keys, p.KVLen))
	return pairs(p, step, keys) / float64(keys)
}

// rowElements and keyElements return the elements of Q and O, and of K and V, with
// as many rows and keys as fill the lanes.
func rowElements(p *flashkit.Problem, lanes int) float64 {
	return float64(p.Batch*p.Heads) * float64(ceilDiv(p.QLen, lanes)*lanes) * float64(p.Dim+p.VDim)
}

func keyElements(p *flashkit.Problem, lanes int) float64 {
	return float64(p.Batch*p.KVHeads) * float64(ceilDiv(p.KVLen, lanes)*lanes) * float64(p.Dim+p.VDim)
}

// converted returns x, of K and V or in a pass where all have one type, if that is not
// float32, else 0.
func converted(p *flashkit.Problem, x float64) float64 {
	if p.KVType() == flashkit.Float32 {
		return 0
	}
	return x
}

// share returns the part of a head's pairs that the longest item has: n of so many
// rows, and the keys that they see, or n of the keys, and the rows that see them.
func share(p *flashkit.Problem, n, of, across int) float64 {
	n = min(n, of)
	seen := n
	for _, side := range [2]int{p.Band.Left(), p.Band.Right()} {
		if side == flashkit.Unlimited {
			seen = across
			break
		}
		seen += min(side, across)
	}
	return min(1, float64(n)*float64(min(seen, across))/float64(max(1, p.Area())))
}

// forward is the phase of a planned forward pass, whose items are
// tiles of whole lanes. It takes keys in steps. Rows that share a key while it is in
// cache load it once, be they of one item or of neighbors.
func (c *pace) forward(pl *plan, lanes, step, sharing int) [3]timedPhase {
	items := pl.work[0].Items
	f := ofSequences(pl.call, func(p flashkit.Problem) timedPhase {
		return c.forwardOf(&p, c.feature*forwardTime(pl.call), lanes, step, items, pl.rows, sharing)
	})
	f.items = items
	return [3]timedPhase{f}
}

// ofSequences adds up the phases of the sequences of a call, or returns that of all if
// they are equal.
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

// forwardOf is forward of equal sequences, with what features add to a pair.
func (c *pace) forwardOf(p *flashkit.Problem, feature float64, lanes, step, items, rows, sharing int) timedPhase {
	heads, dims := p.Batch*p.Heads, float64(p.Dim+p.VDim)
	read := readKeys(p, sharing, step) * dims
	tile := float64(heads)*float64(ceilDiv(p.QLen, lanes))*c.start + rowElements(p, lanes)*c.element
	pair := pairs(p, lanes, step)*(2*dims*c.flop+c.pair+feature) + read*c.pack + converted(p, read)*c.widen
	return uneven(items, tile, pair, share(p, rows, p.QLen, p.KVLen)/float64(max(1, heads)))
}

// backward is the phases of a backward pass in blocks of keys, which are in the lanes
// and walk tiles of rows. edge is how many rows meet an edge of the band together.
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

// backwardOf is backward of equal sequences, with what features add to a pair.
func (c *pace) backwardOf(p *flashkit.Problem, feature float64, lanes, edge int, f bwdCut) [3]timedPhase {
	const products = 5
	heads, dims := p.Batch*p.KVHeads, float64(p.Dim+p.VDim)
	read := readRows(p, edge, f.keys) * dims
	visits := pairs(p, f.rows, f.keys) / float64(f.rows*f.keys)
	tile := timedPhase{items: f.tiles, nanoseconds: float64(f.tiles)*tileTime + rowElements(p, 1)*c.element}
	block := float64(f.blocks)*c.start + keyElements(p, lanes)*c.element
	pair := pairs(p, edge, lanes)*(products*dims*c.flop+c.pair+feature) + visits*tileTime + read*c.pack + converted(p, read)*c.widen
	blocks := uneven(f.blocks, block, pair, share(p, f.keys, p.KVLen, p.QLen)/float64(max(1, heads)))
	if !f.finish {
		return [3]timedPhase{tile, blocks}
	}
	tile.nanoseconds /= 2 // the other half is at the end
	return [3]timedPhase{tile, blocks, tile}
}

// A bwdCut says how a backward pass is cut.
type bwdCut struct {
	rows, keys    int  // of a tile, of a block
	tiles, blocks int  // of all heads
	finish        bool // tiles have a last phase
}
