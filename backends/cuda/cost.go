package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// The time of a call is predicted from parts that can be read off a kernel:
//
//	launch     the launches, and what runs in them before and after the main kernel
//	steps      a block takes its tile through the tiles that the band shows it; a tile
//	           costs as much when it is half empty, and a head dim what it is padded to
//	waves      blocks, over the multiprocessors and the blocks that each of them holds
//	bytes      of the device's memory, once for each element that some row sees
//
// The device works on steps and bytes at the same time, so the longer of them counts,
// and of the shorter what the kernel does not hide. Cycles are of the multiprocessors'
// highest clock: what the power limit takes from it is in the steps.

// Costs are what a stem's parts cost.
type costs struct {
	launch        float64 // microseconds of the launches of a call
	extra         float64 // microseconds of one more: a counter set to 0, parts put together
	bandwidth     float64 // fraction of the memory's bandwidth that the kernel reaches
	exposed       float64 // fraction of the shorter of cycles and bytes that is not hidden
	loose         float64 // cycles to copy an element where rows do not begin at multiples of 16 bytes
	looseTogether float64 // the same when the multiprocessor holds all its blocks
	row           float64 // decode: cycles of a block for each of its rows
	few           float64 // fwd_sm90: fraction of a step's cycles when one warpgroup has rows
	tail          float64 // fraction of a block by which the last one ends late, when blocks differ
	empty         float64 // cycles of a block that sees nothing
	hop           float64 // backward: cycles until the next block of a head may add its part of dQ,
	later         float64 // and more of them if the block has a further step, which comes first
	deep          float64 // steps in flight
	edge          float64 // further steps for a step that the band or the last key cuts
	blind         float64 // backward: steps for a step with rows that see no key
	tiles         []tile  // by padded head dim
}

// A tile is the plan of an instance on Hopper, and its cycles.
type tile struct {
	rows, keys int     // of a step
	perSM      int     // blocks that a multiprocessor holds
	begin      float64 // cycles before the first step of a block and after its last
	step       float64 // cycles of a step when the multiprocessor holds all its blocks
	alone      float64 // cycles of a step at least, as a block waits for its own results
}

// A load is the work of the blocks that own the tiles of a head.
type load struct {
	blocks, empty float64 // those that see something, and those that do not
	steps, most   float64 // of a block that does: the mean and the most
}

// deviceCost predicts the time of a call on the device's own memory, where rows begin
// at multiples of 16 bytes or, if loose, do not.
func (s *stem) deviceCost(dev *Device, p flashkit.Problem, loose bool) time.Duration {
	c, sms := s.costsOf(p.DType), max(1, dev.SMs)
	t := c.tiles[min(s.pad(p), len(c.tiles)-1)]
	var cycles float64
	us, steps := c.launch, 1.
	switch {
	case p.Batch == 0 || p.QLen == 0 && s.pass == flashkit.PassForward:
	case s.rows > 0:
		var split bool
		if cycles, steps, split = decodeCycles(c, &t, p, sms, loose); split {
			us += c.extra
		}
	case s.hopper && s.pass == flashkit.PassForward:
		cycles, steps = persistentCycles(c, t, p, sms)
		if planHopper(p).turn > 0 {
			us += c.extra
		}
	case s.pass == flashkit.PassForward:
		if loose {
			t.loosen(c, p, min(t.rows, p.QLen), t.keys)
		}
		l := s.load(c, &t, p, true)
		cycles, steps = l.cycles(c, &t, p.Batch*p.Heads, sms), l.steps
	default:
		if loose {
			t.loosen(c, p, min(t.keys, p.KVLen), t.rows)
		}
		cycles, steps = s.backwardCycles(c, &t, p, sms), 1e9
	}
	work := cycles / float64(max(1, dev.ClockMHz)) // microseconds
	exposed := c.exposed + (1-c.exposed)/max(1, steps*c.deep)
	memory := s.bytes(p) / (c.bandwidth * float64(max(1, dev.Bandwidth))) * 1e6
	return duration((us + max(work, memory) + exposed*min(work, memory)) * 1e-6)
}

// loosen adds what rows cost that are copied by elements: own ones of a block, and those
// of each step.
func (t *tile) loosen(c *costs, p flashkit.Problem, own, step int) {
	width := float64(p.Dim + p.VDim)
	t.begin += c.loose * width * float64(own)
	t.step += c.looseTogether * width * float64(step)
	t.alone += c.loose * width * float64(step)
}

// cycles returns how long the multiprocessors take for the blocks of all heads: whole
// waves of them, then one of the rest; where a mask makes blocks differ, short ones fill
// the gaps between long ones.
func (l load) cycles(c *costs, t *tile, heads, sms int) float64 {
	perSM := float64(t.perSM)
	all, slots := l.blocks*float64(heads), float64(sms)*perSM
	full, alone := t.begin+l.steps*max(t.step, t.alone), max(t.step/perSM, t.alone)
	whole := math.Floor(all / slots)
	rest := 0.0
	if each := math.Ceil((all - whole*slots) / float64(sms)); each > 0 {
		rest = t.begin + l.steps*max(t.step*each/perSM, t.alone)
	}
	idle := l.empty * float64(heads) / slots * c.empty
	switch {
	case l.most == l.steps:
		return idle + whole*full + rest
	case whole == 0:
		return idle + max(t.begin+l.most*alone, rest)
	}
	return idle + max(t.begin+l.most*alone, min(math.Ceil(all/slots), all/slots+c.tail)*full)
}

// load counts the steps of a head's blocks, which own tiles of query rows and walk tiles
// of keys, or own keys and walk the query rows of all heads of the group.
func (s *stem) load(c *costs, t *tile, p flashkit.Problem, rows bool) (l load) {
	own, owned, walked, group, see := t.rows, p.QLen, t.keys, 1, p.Keys
	if !rows {
		own, owned, walked, group, see = t.keys, p.KVLen, t.rows, p.Heads/p.KVHeads, p.Queries
	}
	n := tiles(owned, own)
	const most = 32 // tiles that are looked at
	looked := min(n, most)
	active := 0
	for i := range looked {
		first := i * n / looked * own
		if i == looked-1 {
			first = (n - 1) * own
		}
		from, fullTo := see(first)
		fullFrom, to := see(min(first+own, owned) - 1)
		if to > from {
			active++
			all := (to-1)/walked - from/walked + 1
			steps := (float64(all) + c.edge*float64(all-max(0, fullTo/walked-tiles(fullFrom, walked)))) * float64(group)
			l.steps += steps
			l.most = max(l.most, steps)
		}
	}
	l.steps /= float64(max(1, active))
	l.blocks = float64(n*active) / float64(max(1, looked))
	l.empty = float64(n) - l.blocks
	return l
}

// backwardCycles returns the cycles of a backward pass. The blocks of a head add to dQ one
// after the other; those of sixteen heads are at it together.
func (s *stem) backwardCycles(c *costs, t *tile, p flashkit.Problem, sms int) float64 {
	l, heads := s.load(c, t, p, false), p.Batch*p.KVHeads
	if p.DType == flashkit.Float32 { // blocks that own query rows have dQ alone
		return l.cycles(c, t, heads, sms) + s.load(c, t, p, true).cycles(c, t, p.Batch*p.Heads, sms)
	}
	hop := c.hop
	if p.Heads/p.KVHeads*tiles(p.QLen, t.rows) > 1 {
		hop += c.later
	}
	var blind float64
	if _, to := p.Keys(0); to == 0 && p.KVLen > 0 {
		blind = c.blind * t.step * l.most * math.Ceil(float64(heads)/float64(sms))
	}
	from, to := p.Keys(p.QLen - 1)
	slots, groups := float64(sms*t.perSM), float64(tiles(heads, 16))
	queue := min(l.blocks, float64(tiles(to-from, t.keys)+1))     // blocks that add to the same rows
	chain := hop * (queue + (groups-1)*max(0, queue-.4*slots/16)) // the next heads begin before these end
	skew := hop * min(queue, slots/float64(min(heads, 16)))
	if s.hopper {
		heads *= tiles(max(p.Dim, p.VDim), hopperKeyColumns)
	}
	return max(l.cycles(c, t, heads, sms)+skew, chain) + blind
}

// persistentCycles returns the cycles of fwd_sm90, whose blocks take tiles of query rows
// in turn. A warpgroup that has no rows leaves the others part of its time.
func persistentCycles(c *costs, t tile, p flashkit.Problem, sms int) (cycles, steps float64) {
	l, heads, groups := stems[fwdSM90].load(c, &t, p, true), p.Batch*p.Heads, t.rows/groupRows
	if planHopper(p).turn == 0 && p.QLen > groupRows {
		_, taken := cutRows(p.QLen, heads, groups, sms)
		return taken * max(t.alone, t.begin+l.steps*t.step), l.steps
	}
	rows := p.QLen - (tiles(p.QLen, t.rows)-1)*t.rows // of a head's last tile
	if p.QLen <= groupRows {
		t.step *= c.few
	} else if p.QLen <= t.rows {
		t.step *= groupShare(tiles(rows, groupRows), groups)
	} else if l.blocks > 1 {
		l.blocks -= 1 - groupShare(tiles(rows, groupRows), groups)
	}
	t.begin = max(t.begin, t.alone-l.steps*t.step)
	t.alone = t.step
	return l.cycles(c, &t, heads, sms), l.steps
}

// decodeCycles returns the cycles of decode_sm80, and whether it splits the keys. In each
// round every warp of a block takes a piece of the keys, with as many rows as it holds;
// more rows are for other warps, which then take the same keys.
func decodeCycles(c *costs, t *tile, p flashkit.Problem, sms int, loose bool) (cycles, steps float64, split bool) {
	warpRows := 16
	if p.DType == flashkit.Float32 {
		warpRows = 8
	}
	rows, warps := p.Heads/p.KVHeads*p.QLen, t.rows/warpRows
	first, _ := p.Keys(0)
	_, last := p.Keys(p.QLen - 1)
	heads, pieces := p.Batch*p.KVHeads, tiles(max(0, last-first), t.keys)
	splits, _ := cutKeys(heads, pieces, warps, sms*t.perSM)
	waves, rounds := tiles(heads*splits, sms*t.perSM), tiles(tiles(pieces, splits), warps)
	width, team := float64(p.Dim+p.VDim), 1 // warps that share keys
	for team*warpRows < rows {
		team *= 2
	}
	begin, fetch := t.begin+c.row*float64(rows), t.alone
	if loose {
		begin += c.loose * width * float64(min(rows, warpRows))
		fetch += c.loose * width * float64(warps*t.keys)
	}
	return float64(waves) * (begin + float64(rounds)*max(fetch, t.step*float64(team))), float64(rounds), splits > 1
}

// bytes returns what a pass moves of the device's memory: each tensor once, but for the
// keys that no row sees, and the workspace.
func (s *stem) bytes(p flashkit.Problem) float64 {
	if p.QLen > 0 {
		first, _ := p.Keys(0)
		_, last := p.Keys(p.QLen - 1)
		p.KVLen = max(0, last-first)
		p.Mask = flashkit.Band{}
	}
	n := p.Bytes(s.pass)
	if s.pass == flashkit.PassBackward { // O and dO for delta; dQ added to, and rounded
		rows := float64(p.Batch) * float64(p.Heads) * float64(p.QLen)
		n += rows * float64(p.VDim*p.DType.Size())
		if p.DType != flashkit.Float32 {
			n += rows * float64(2*4*s.dims[min(s.pad(p), len(s.dims)-1)])
		}
	}
	return n
}

// hostCost predicts the time of a call with host tensors.
func (s *stem) hostCost(dev *Device, p flashkit.Problem) time.Duration {
	return callTime + s.deviceCost(dev, p, false) + duration(p.Bytes(s.pass)/hostRate)
}

const (
	callTime = 30 * time.Microsecond
	hostRate = 20e9 // bytes per second, of both ways together
)

// duration converts seconds, however many.
func duration(seconds float64) time.Duration {
	return time.Duration(min(seconds*1e9, math.MaxInt64/4))
}

// costsOf returns the costs of the stem with a dtype.
func (s *stem) costsOf(t flashkit.DType) *costs {
	if s.rows > 0 && t == flashkit.Float32 {
		return &decodeF32Costs
	}
	return s.costs
}
