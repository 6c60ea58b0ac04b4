package simd

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
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
}

// callTime is what a call takes before and after its items, and helpTime what
// each helper takes to come and to leave, in nanoseconds.
const (
	callTime = 500
	helpTime = 2500
)

// cost returns the time of a call: the nanoseconds of all items, shared by those
// cores that have one.
func cost(nanoseconds float64, items int) time.Duration {
	n := float64(max(1, min(workers(), items)))
	t := callTime + nanoseconds/n + helpTime*(n-1)
	return time.Duration(min(t, math.MaxInt64/2))
}

// pairs returns how many rows and keys meet in all heads, if rows are taken in
// tiles of whole lanes: beyond the last row, and beyond the edges of the band, a
// tile computes what nobody sees.
func pairs(p *flashkit.Problem, lanes int) float64 {
	n := tiles(p.QLen, lanes)
	seen := float64(p.Area()) * float64(n*lanes) / float64(max(1, p.QLen))
	for _, side := range [2]int{p.Mask.Left(), p.Mask.Right()} {
		if side != flashkit.Unlimited {
			seen += float64(n) * float64(lanes*(lanes-1)/2)
		}
	}
	return float64(p.Batch*p.Heads) * min(seen, float64(n*lanes)*float64(p.KVLen))
}

// rowElements and keyElements return the elements of Q and O, and of K and V with
// as many keys as fill the lanes.
func rowElements(p *flashkit.Problem) float64 {
	return float64(p.Batch*p.Heads) * float64(p.QLen) * float64(p.Dim+p.VDim)
}

func keyElements(p *flashkit.Problem, lanes int) float64 {
	return float64(p.Batch*p.KVHeads) * float64(tiles(p.KVLen, lanes)*lanes) * float64(p.Dim+p.VDim)
}

// converted returns x if the problem's type is not float32, else 0.
func converted(p *flashkit.Problem, x float64) float64 {
	if p.DType == flashkit.Float32 {
		return 0
	}
	return x
}

// forward is the time of a forward pass in tiles of query rows, whose items are
// at least one tile, and at most so many rows.
func (c *pace) forward(p *flashkit.Problem, lanes, rows int) time.Duration {
	met, dims := pairs(p, lanes), float64(p.Dim+p.VDim)
	n := p.Batch * p.Heads * tiles(p.QLen, lanes)
	visits := pairs(p, rows) / float64(rows) // of items by keys
	sum := float64(n)*c.start + met*(2*dims*c.flop+c.pair) + rowElements(p)*c.element + visits*dims*c.pack + converted(p, visits*dims)*c.widen
	return cost(sum, n)
}

// backward is the time of a backward pass in items of so many keys, which are in the
// lanes and walk tiles of rows. edge is how many rows meet an edge of the band together.
func (c *pace) backward(p *flashkit.Problem, lanes, edge, keys int) time.Duration {
	const products = 5
	met, dims := pairs(p, edge), float64(p.Dim+p.VDim)
	n := p.Batch * p.KVHeads * tiles(p.KVLen, keys)
	read := met / float64(keys) * dims
	sum := float64(n)*c.start + met*(products*dims*c.flop+c.pair) + (rowElements(p)+keyElements(p, lanes))*c.element +
		read*c.pack + converted(p, read)*c.widen
	return cost(sum, n)
}
