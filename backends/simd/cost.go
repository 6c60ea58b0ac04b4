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
	flop    float64 // a floating point operation of a product, idle lanes included
	pair    float64 // a pair of a row and a key: mainly the exponential
	element float64 // an element of a row that is loaded once, or stored
	pack    float64 // an element loaded again per item: of K or V forward, of Q or dO per tile backward
	widen   float64 // added to pack for an element of a 16-bit type
	feature float64 // factor on featureTimes, forward
}

// Costs that all kernels share, in nanoseconds.
const (
	callTime = 500  // a call, outside its phases
	helpTime = 1100 // a helper that joins a phase and leaves
	tileTime = 280  // preparing, visiting or finishing a backward tile of query rows
)

// timedPhase is the cost of items that may run in parallel.
type timedPhase struct {
	items       int
	nanoseconds float64 // of all items
	longest     float64 // of the longest item, if above the mean
}

// uneven returns a phase whose items share the time equal evenly. The longest item has the fraction
// most of other.
func uneven(items int, equal, other, most float64) timedPhase {
	return timedPhase{items, equal + other, equal/float64(max(1, items)) + other*most}
}

// crowding is the slowdown, less 1, at 16 or more processors: most cores run two threads, and all
// share the memory. It ranks the CPU against a device, never one CPU kernel against another.
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

// time returns the nanoseconds of a phase on up to n workers. Items are whole: the busiest worker
// and the longest item bound the time.
func (f timedPhase) time(n int) float64 {
	if f.items <= 0 {
		return 0
	}
	n = min(n, f.items)
	t := max(f.longest, f.nanoseconds*float64(ceilDiv(f.items, n))/float64(f.items))
	return t + helpTime*float64(n-1)
}

// seenRows returns the number of query rows that see a key.
func seenRows(p *flashkit.Problem) int {
	if p.KVLen == 0 {
		return 0
	}
	first, _ := p.Queries(0)
	_, end := p.Queries(p.KVLen - 1)
	return max(0, end-first)
}

// pairs returns the pairs of rows and keys, over all heads, that tiles of rows x keys compute, with
// padding and pairs outside the band.
func pairs(p *flashkit.Problem, rows, keys int) float64 {
	seen := seenRows(p)
	n, m := ceilDiv(seen, rows)*rows, ceilDiv(p.KVLen, keys)*keys
	sum := float64(p.Area()) * float64(n) / float64(max(1, seen)) * float64(m) / float64(max(1, p.KVLen))
	for _, side := range [2]int{p.Band.Left(), p.Band.Right()} {
		if side != flashkit.Unlimited {
			sum += float64(n) * float64(min(rows, seen)+min(keys, p.KVLen)-2) / 2
		}
	}
	return float64(p.Batch*p.Heads) * min(sum, float64(n)*float64(m))
}

// readKeys returns the keys that tiles of the given number of rows read, over all heads.
func readKeys(p *flashkit.Problem, rows, step int) float64 {
	rows = max(1, min(rows, p.QLen))
	return pairs(p, rows, step) / float64(rows)
}

// readRows returns the rows that blocks of the given number of keys read, over all heads.
func readRows(p *flashkit.Problem, step, keys int) float64 {
	keys = max(1, min(keys, p.KVLen))
	return pairs(p, step, keys) / float64(keys)
}

// rowElements and keyElements return the elements of Q and O, and of K and V, in whole vectors of
// lanes.
func rowElements(p *flashkit.Problem, lanes int) float64 {
	return float64(p.Batch*p.Heads) * float64(ceilDiv(p.QLen, lanes)*lanes) * float64(p.Dim+p.VDim)
}

func keyElements(p *flashkit.Problem, lanes int) float64 {
	return float64(p.Batch*p.KVHeads) * float64(ceilDiv(p.KVLen, lanes)*lanes) * float64(p.Dim+p.VDim)
}

// converted returns x, a number of elements of K and V, or 0 if they are float32.
func converted(p *flashkit.Problem, x float64) float64 {
	if p.KVType() == flashkit.Float32 {
		return 0
	}
	return x
}

// share returns the largest item's fraction of a head's pairs. The item has n of the rows and the
// keys that they see, or n of the keys and the rows that see them.
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

// forward returns the phase of a planned forward pass whose items are tiles of whole lanes and take
// keys in steps. sharing is the number of rows, of one item or its neighbors, that load a cached
// key once.
func (c *pace) forward(pl *plan, lanes, step, sharing int) [3]timedPhase {
	items := pl.work[0].Items
	f := ofSequences(pl.call, func(p flashkit.Problem) timedPhase {
		return c.forwardOf(&p, c.feature*forwardTime(pl.call), lanes, step, items, pl.rows, sharing)
	})
	f.items = items
	return [3]timedPhase{f}
}

// ofSequences returns the phase of all sequences.
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

// forwardOf is forward of equal sequences, with the features' cost per pair.
func (c *pace) forwardOf(p *flashkit.Problem, feature float64, lanes, step, items, rows, sharing int) timedPhase {
	heads, dims := p.Batch*p.Heads, float64(p.Dim+p.VDim)
	read := readKeys(p, sharing, step) * dims
	tile := float64(heads)*float64(ceilDiv(p.QLen, lanes))*c.start + rowElements(p, lanes)*c.element
	pair := pairs(p, lanes, step)*(2*dims*c.flop+c.pair+feature) + read*c.pack + converted(p, read)*c.widen
	return uneven(items, tile, pair, share(p, rows, p.QLen, p.KVLen)/float64(max(1, heads)))
}

// backward returns the phases of a backward pass in blocks of keys, which are in the lanes and walk
// tiles of rows. edge is the granularity, in rows, at the edges of the band.
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

// backwardOf is backward of equal sequences, with the features' cost per pair.
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
	tile.nanoseconds /= 2 // the last phase has the other half
	return [3]timedPhase{tile, blocks, tile}
}

// bwdCut is the partition of a backward pass.
type bwdCut struct {
	rows, keys    int  // of a tile, of a block
	tiles, blocks int  // of all heads
	finish        bool // tiles have a last phase
}
