package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// The predicted time of a call is launch + max(work, memory) + exposed*min(work, memory):
//
//	launch   the fixed time of the call's launches
//	work     the time of the main kernel's blocks. A block begins, then runs one step for each
//	         tile that the band lets it see. A partly hidden tile takes about as long as a full
//	         one, and a head dim about as long as its padded size. Blocks run in waves: each
//	         multiprocessor holds one or a few at a time
//	memory   the time to move the tensors, and the workspace, from and to device memory
//	exposed  the fraction of the shorter time that the longer one does not hide
//
// Cycles are counted at the multiprocessors' highest clock. The power limit lowers the actual
// clock. The fitted numbers of cycles are larger for that reason.

type tile struct {
	blockShape
	tileCosts
}

func (s *family) tile(c *costs, p *flashkit.Problem) tile {
	return tile{*s.shape(p), c.tiles[min(s.pad(*p), len(c.tiles)-1)]}
}

// A surcharge is the cost of features: step multiplies the time of a step, bytes multiplies the
// time for memory traffic, and begin adds cycles to each block.
type surcharge struct {
	step, bytes, begin float64
	cut                cut // the partition that decode_sm80 must use; zero: decode_sm80 chooses
}

// A cut is the partition of the keys by decode_sm80. It is zero if no partition is chosen yet.
type cut struct {
	splits  int
	cluster bool
}

// deviceCost predicts the time of a call on device tensors. loose means that rows of Q, K, V or O
// begin at addresses that are not multiples of 16 bytes.
func (s *family) deviceCost(dev *Device, p flashkit.Problem, loose bool) time.Duration {
	return s.costWith(dev, p, loose, surcharge{step: 1, bytes: 1})
}

// costWith is deviceCost with a surcharge.
func (s *family) costWith(dev *Device, p flashkit.Problem, loose bool, x surcharge) time.Duration {
	c, sms := s.costsOf(p.DType), max(1, dev.SMs)
	if s.pass == flashkit.PassForward && s.rows == 0 {
		p, _ = packedHeads(p)
	}
	t := s.tile(c, &p)
	if x.begin > 0 { // hidden becomes a fraction of the sum: earlier blocks hide part of t.begin, and nothing of x.begin
		own := *c
		own.hidden *= t.begin / (t.begin + x.begin)
		c, t.begin = &own, t.begin+x.begin
	}
	t.step, t.alone = t.step*x.step, t.alone*x.step
	us, cycles, steps := c.launch, 0., 0.
	switch {
	case p.Batch == 0 || p.QLen == 0 && s.pass == flashkit.PassForward:
	case s.rows > 0:
		var parts cut
		cycles, steps, parts = s.decodeCycles(c, &t, p, dev, loose, x.cut)
		us += c.joined(parts)
	case s.pass == flashkit.PassBackward:
		if loose {
			t.loosen(c, s, &p, min(t.keys, p.KVLen), t.rows)
		}
		cycles = s.cutCycles(c, &t, p, sms, s.cutBackward(&p, sms, true)) + c.ends*float64(p.Batch*p.Heads*ceilDiv(p.QLen, backwardRows))/float64(endBlocks*sms)
	case s == &families[fwdSM90]:
		h := planHopper(p, sms)
		if cycles, steps = c.planCycles(&h, &t, p.Batch*p.Heads, sms), float64(h.steps); h.cycles == 0 {
			cycles, steps = persistentCycles(c, t, p, sms, h.counters > 0 && banded(p))
		}
		if h.counters > 0 {
			us += c.extra
		}
	default:
		if loose {
			t.loosen(c, s, &p, min(t.rows, p.QLen), t.keys)
		}
		l := s.load(c, &t, p, true)
		l.trimLast(c, &t, p.QLen)
		if s == &families[fwdSM90Short] {
			cycles = l.shorten(&t, &p, sms)
		}
		cycles, steps = max(cycles, l.cycles(c, &t, p.Batch*p.Heads, sms)), l.steps
	}
	work := cycles / float64(max(1, dev.ClockMHz)) // microseconds
	memory := x.bytes * s.bytes(p) / (c.bandwidth * float64(max(1, dev.Bandwidth))) * 1e6
	exposed := c.exposed
	if c.deep > 0 {
		exposed += (1 - exposed) / max(1, steps*c.deep)
	}
	return microseconds(us + max(work, memory) + exposed*min(work, memory))
}

// planCycles returns the cycles of fwd_sm90 for a call with few tiles, which h partitions. heads is
// the number of query heads of all batches.
func (c *costs) planCycles(h *hopperPlan, t *tile, heads, sms int) float64 {
	share := stepShare(int(h.rows.lowRows)/groupRows, t.rows/groupRows)
	begins := ceilDiv(int(h.rows.low)*heads*h.splits, sms)
	cycles := (float64(begins)-float64(begins-1)*c.hidden)*t.begin + float64(h.steps)*t.step*share
	if h.splits > 1 {
		cycles += partsCycles(4*h.partO, partBytes, sms)
	}
	return cycles
}

// joined returns the microseconds in which decode_sm80 merges the results of all parts of the keys.
// x is the partition of the keys.
func (c *costs) joined(x cut) float64 {
	switch {
	case x.splits <= 1:
		return 0
	case x.cluster:
		return c.cluster
	}
	return c.extra
}

// wide returns the padded head dim in units of 128 columns.
func (s *family) wide(p *flashkit.Problem) float64 {
	return float64(s.padded(p).dim) / 128
}

// endBlocks is the number of blocks per multiprocessor in a backward pass's first and last kernels.
const endBlocks = 4

func (s *family) costsOf(t flashkit.DType) *costs {
	if s == &families[decodeSM80] && t == flashkit.Float32 {
		return &decodeF32Costs
	}
	return s.costs
}

// bytes returns the bytes that a pass moves: each tensor once, and the workspace. It leaves out
// keys that no query sees, and queries that see no key.
func (s *family) bytes(p flashkit.Problem) float64 {
	unseen, blind := 0, float64(p.Batch)*float64(p.Heads)*float64(s.blindRows(&p))
	if p.QLen > 0 {
		seen := seenKeys(&p)
		unseen, p.KVLen = p.KVLen-seen, seen
	}
	n := p.Bytes(s.pass) - blind*float64(p.Dim*p.DType.Size())
	if s.pass == flashkit.PassBackward { // dO is read twice, dQ is written and read in float32, dK and dV of unseen keys are zeroed
		n += float64(p.Batch) * float64(p.KVHeads) * float64(unseen) * float64((p.Dim+p.VDim)*p.DType.Size())
		rows := float64(p.Batch) * float64(p.Heads) * float64(p.QLen)
		n += rows * float64(p.VDim*p.DType.Size())
		if p.DType != flashkit.Float32 { // tiles of dQ are written whole
			padded := rows / float64(max(1, p.QLen)) * float64(ceilDiv(p.QLen, backwardRows)*backwardRows)
			n += (rows + padded - 2*blind) * float64(4*s.padded(&p).dim)
		}
	}
	return n
}

// blindRows returns the number of query rows that see no key and are not read. It returns 0 for
// fwd_sm90_short, which reads all rows.
func (s *family) blindRows(p *flashkit.Problem) int {
	if s == &families[fwdSM90Short] || p.KVLen == 0 {
		return 0
	}
	lo, hi := band(*p)
	return min(p.QLen, max(0, -hi)+max(0, p.QLen-p.KVLen+lo))
}

// microseconds returns a duration of n microseconds, at most a quarter of the largest duration.
func microseconds(n float64) time.Duration {
	return time.Duration(min(n*1e3, math.MaxInt64/4))
}
