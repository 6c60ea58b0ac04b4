package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// The time of a call is predicted from parts that can be read off a kernel:
//
//	launch   the launches, and what they run before and after the main kernel
//	steps    a block takes its tile through the tiles that the band shows it: each costs
//	         the same when it is half empty, and a head dim costs what it is padded to
//	waves    how often the multiprocessors take blocks, of which each holds some at a time
//	bytes    of the device's memory, once for each row of a tensor that takes part
//
// Steps and bytes are worked on at the same time: the longer of them counts, and of the
// shorter what the kernel does not hide behind it. Cycles are of the multiprocessors'
// highest clock; what the power limit takes away is in the cycles of a step.

// costs are what the parts of a stem cost.
type costs struct {
	launch    float64 // microseconds of the launches of a call
	first     float64 // microseconds more of one with features, whose arguments and code are larger,
	several   float64 // and of one by the instance for all of them, where others are for one alone
	extra     float64 // microseconds of one more: a counter set to 0, parts put together
	bandwidth float64 // fraction of the memory's bandwidth that is reached
	exposed   float64 // fraction of the shorter of steps and bytes that is not hidden
	deep      float64 // if not 0, how much of them one step of a block hides
	loose     float64 // cycles of a warp to copy an element where rows do not begin at multiples of 16 bytes
	tail      float64 // blocks by which the last ends late when a mask makes them differ
	edge      float64 // further steps for a step that the band or the last key cuts
	empty     float64 // cycles of a block that sees nothing

	few   float64 // fwd_sm90: fraction of a step when one warpgroup alone has rows
	row   float64 // decode_sm80: cycles of a block for each of its query rows,
	half  float64 // and, if not 0, fraction of a step when warps have at most half of the rows that they may,
	width float64 // and of what a step takes for its columns, which those of padding do not
	flat  float64 // fraction of what features add to a step that head dims have in common
	hop   float64 // backward: cycles until the next block of a head may add its part of dQ,
	later float64 // and more of them if the block has another step, which comes first
	plus  float64 // cycles of a block with features
	carry float64 // and of one that continues O, for each element of it
	blind float64 // backward: further steps for each step of blocks with rows that see no key

	tiles []tile // by padded head dim
}

// A tile is the plan of an instance on Hopper, and its cycles.
type tile struct {
	rows, keys int     // of a step; decode_sm80: rows of a block, keys of a warp
	warps      int     // of a block
	perSM      int     // blocks that a multiprocessor holds
	begin      float64 // cycles before the first step of a block and after its last
	step       float64 // cycles of a step when the multiprocessor holds all its blocks
	alone      float64 // cycles of a step at least, as a block waits for its own results; fwd_sm90: of a tile
}

// A surcharge is what features add: factors of a step and of the time for bytes, and cycles of a block.
type surcharge struct {
	step, bytes, begin float64
	cut                cut // of decode_sm80, if it is that of another problem
}

// A cut is how decode_sm80 cuts the keys, 0 if nobody has said.
type cut struct {
	splits  int
	cluster bool
}

// deviceCost predicts the time of a call on the device's own memory, where rows begin
// at multiples of 16 bytes or, if loose, do not.
func (s *stem) deviceCost(dev *Device, p flashkit.Problem, loose bool) time.Duration {
	return s.surcharged(dev, p, loose, surcharge{step: 1, bytes: 1})
}

// surcharged is deviceCost with a surcharge.
func (s *stem) surcharged(dev *Device, p flashkit.Problem, loose bool, x surcharge) time.Duration {
	c, sms := s.costsOf(p.DType), max(1, dev.SMs)
	if s.pass == flashkit.PassForward && s.rows == 0 {
		p, _ = folded(p)
	}
	t := c.tiles[min(s.pad(p), len(c.tiles)-1)]
	t.begin += x.begin
	factor := 1 + (x.step-1)*(1+c.flat*(c.common(&t)/t.step-1))
	t.step, t.alone = t.step*factor, t.alone*factor
	us, cycles, steps := c.launch, 0., 0.
	switch {
	case p.Batch == 0 || p.QLen == 0 && s.pass == flashkit.PassForward:
	case s.rows > 0:
		var apart bool
		if cycles, steps, apart = decodeCycles(c, &t, p, dev, loose, x.cut); apart {
			us += c.extra
		}
	case s.pass == flashkit.PassBackward:
		if loose {
			t.loosen(c, p, min(t.keys, p.KVLen), t.rows)
		}
		_, cycles = s.cutBackward(c, &t, p, sms, true)
	case s == &stems[fwdSM90]:
		h := planHopper(p, sms)
		if cycles, steps = h.cycles, float64(h.steps); cycles == 0 {
			cycles, steps = persistentCycles(c, t, p, sms, h.turn > 0 && banded(p))
		}
		if h.turn > 0 {
			us += c.extra
		}
	default:
		if loose {
			t.loosen(c, p, min(t.rows, p.QLen), t.keys)
		}
		l := s.load(c, &t, p, true)
		cycles, steps = l.cycles(c, &t, p.Batch*p.Heads, sms), l.steps
	}
	work := cycles / float64(max(1, dev.ClockMHz)) // microseconds
	memory := x.bytes * s.bytes(p) / (c.bandwidth * float64(max(1, dev.Bandwidth))) * 1e6
	exposed := c.exposed
	if c.deep > 0 {
		exposed += (1 - exposed) / max(1, steps*c.deep)
	}
	return microseconds(us + max(work, memory) + exposed*min(work, memory))
}

// common returns the cycles of a step of a tile if all head dims took those of the middle one.
func (c *costs) common(t *tile) float64 {
	m := &c.tiles[len(c.tiles)/2]
	return m.step * float64(t.rows*t.keys*t.perSM) / float64(m.rows*m.keys*m.perSM)
}

// costsOf returns the costs of the stem's instances for a dtype.
func (s *stem) costsOf(t flashkit.DType) *costs {
	if s.rows > 0 && t == flashkit.Float32 {
		return &decodeF32Costs
	}
	return s.costs
}

// bytes returns what a pass moves of the device's memory: each tensor once, but for keys
// that no row sees, and the workspace.
func (s *stem) bytes(p flashkit.Problem) float64 {
	unseen := 0
	if p.QLen > 0 {
		first, _ := p.Keys(0)
		_, last := p.Keys(p.QLen - 1)
		unseen, p.KVLen = p.KVLen-max(0, last-first), max(0, last-first)
	}
	n := p.Bytes(s.pass)
	if s.pass == flashkit.PassBackward { // O and dO for delta; dQ added to, and rounded; zeros of dK and dV
		n += float64(p.Batch) * float64(p.KVHeads) * float64(unseen) * float64((p.Dim+p.VDim)*p.DType.Size())
		rows := float64(p.Batch) * float64(p.Heads) * float64(p.QLen)
		n += rows * float64(p.VDim*p.DType.Size())
		if p.DType != flashkit.Float32 {
			n += rows * float64(2*4*s.dims[min(s.pad(p), len(s.dims)-1)].dim)
		}
	}
	return n
}

// microseconds converts them, however many.
func microseconds(n float64) time.Duration {
	return time.Duration(min(n*1e3, math.MaxInt64/4))
}
