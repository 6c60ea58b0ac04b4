package mutants

import (
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
)

// The correct steps of features, which faults.go lists and mutants replace.

// capBiasALiBi returns the score of a scaled dot product x, and the derivative of the softcap at x.
func capBiasALiBi(c *call, x float32, at pair) (s, slope float32) {
	s, slope = c.cap(x, c.p.Score.Softcap)
	return s + c.biased(at) - c.alibi(at), slope
}

func softcap(x, limit float32) (s, slope float32) {
	if limit == 0 {
		return x, 1
	}
	t := float32(math.Tanh(float64(x / limit)))
	return limit * t, 1 - t*t
}

// biased returns the bias of a pair, or 0 if the problem has no bias.
func (c *call) biased(at pair) float32 {
	if !c.p.Score.Bias {
		return 0
	}
	t := c.args.Bias
	return c.bias(c, t, c.index(c, t, at))
}

// alibi returns the ALiBi penalty of a pair, or 0 if the problem has no ALiBi.
func (c *call) alibi(at pair) float32 {
	if !c.p.Score.ALiBi {
		return 0
	}
	return c.steep(c, at) * float32(c.distance(c, at))
}

// slopeOf returns the ALiBi slope of head h of sequence b.
func (c *call) slopeOf(b, h int) float32 {
	t := c.args.Slopes
	return t.Float32s()[t.Repeated(b, h, 0)]
}

// finiteSlope returns the ALiBi slope of a pair, or NaN if the slope is infinite. The product with
// the distance is then NaN even at distance 0.
func finiteSlope(c *call, at pair) float32 {
	x := c.slopeOf(at.b, at.h)
	return x + 0*x
}

func fromDiagonal(p problem, at pair) int { return at.j - at.i - p.Band.Diagonal(p.QLen, p.KVLen) }

func abs(x int) int { return max(x, -x) }

// indexOf returns the index of a pair's element in the memory of t, a bias or mask.
func indexOf(_ *call, t tensor, at pair) int { return t.Repeated(at.b, at.h, at.i) + at.j }

func maskAt(c *call, at pair) bool { return c.args.Mask.Bools()[c.index(c, c.args.Mask, at)] }

// outside reports whether the key of a pair is in no range of the row.
func (c *call) outside(at pair) bool {
	return c.p.Score.Ranges != 0 && !c.within(c, c.ranges(c, at), at)
}

// rangesAt returns the ranges of the row of a pair.
func rangesAt(c *call, at pair) []int32 { return c.rangesAt(c.args.Ranges.Repeated(at.b, at.h, at.i)) }

// rangesAt returns the ranges at an index of the memory, or the last ranges of the memory.
func (c *call) rangesAt(at int) []int32 {
	x, n := c.args.Ranges.Int32s(), 2*c.p.Score.Ranges
	return x[min(at, len(x)-n):][:n]
}

// holds reports whether one of the ranges has key j.
func holds(ranges []int32, j int) bool {
	for r := 0; r < len(ranges); r += 2 {
		if int(ranges[r]) <= j && j < int(ranges[r+1]) {
			return true
		}
	}
	return false
}

// logit returns the sink of a head.
func (c *call) logit(h int) float32 {
	t := c.args.Sink
	return t.Float32s()[t.Offset(0, h, 0)]
}

// earlier returns LSE and O of a row over the earlier keys.
func (c *call) earlier(at pair) (lse float32, o []float32) {
	f, b, r := c.args, c.seq.QBatch, c.seq.Q0+at.i
	o = make([]float32, c.p.VDim)
	c.load(o, f.O, c.offset(f.O, b, at.h, r))
	return c.read(f.LSE, b, at.h, r, 0), o
}

func takeSink(c *call, r *row, at pair) { c.take(r, c.logit(at.h), nil) }

func takeEarlier(c *call, r *row, at pair) {
	if lse, o := c.earlier(at); lse != negInf {
		c.take(r, lse, o)
	}
}

// pageOf returns the page that holds key j of sequence b, and the key's index in the page.
func pageOf(c *flashkit.Call, b, j int) (page, at int) {
	return table(c, b, j/c.Page), j % c.Page
}

// table returns entry i of the page table of sequence b. It clamps i to the last entry, and a
// negative page to 0.
func table(c *flashkit.Call, b, i int) int {
	pages := c.Args.Seqs.Pages
	w := len(pages) / c.Batch
	return max(0, int(pages[b*w+min(i, w-1)]))
}

// dropout returns the dropout factor of a weight: 0 if the weight is dropped.
func dropout(c *call, at pair) float32 {
	p := float64(c.p.Score.Dropout)
	if p == 0 {
		return 1
	}
	key, x := c.counter(c, at)
	if !c.kept(c.half(philox(key, x), at.j), p) {
		return 0
	}
	return c.makeUp(p)
}

// halfOf returns the 16 random bits of key j. Eight keys share the four words of a counter.
func halfOf(words [4]uint32, j int) uint32 {
	if j%8 < 4 {
		return words[j%4] & 0xffff
	}
	return words[j%4] >> 16
}

func atLeast(number uint32, p float64) bool { return number >= limit(p) }

// limit returns a 16-bit number. A weight is dropped if its 16 random bits are below this number.
func limit(p float64) uint32 { return uint32(min(math.Floor(p*(1<<16)+.5), math.MaxUint16)) }

// makeUp returns the dropout factor of kept weights.
func makeUp(p float64) float32 { return float32((1 << 16) / (1<<16 - float64(limit(p)))) }

// counterOf returns the key and the counter of Philox for a pair.
func counterOf(c *call, at pair) (key [2]uint32, x [4]uint32) {
	seed, o := c.args.Seed, &c.args.Origin
	return [2]uint32{uint32(seed), uint32(seed >> 32)}, [4]uint32{uint32((o.Key + at.j) / 8), uint32(o.Row + at.i), uint32(o.Head + at.h), uint32(o.Batch + at.b)}
}

// philox is Philox4x32-7 (Salmon et al. 2011).
func philox(key [2]uint32, x [4]uint32) [4]uint32 {
	for range 7 {
		hi0, lo0 := bits.Mul32(0xD2511F53, x[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, x[2])
		x = [4]uint32{hi1 ^ x[1] ^ key[0], lo1, hi0 ^ x[3] ^ key[1], lo0}
		key[0], key[1] = key[0]+0x9E3779B9, key[1]+0xBB67AE85
	}
	return x
}
