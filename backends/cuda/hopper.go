package cuda

import "github.com/flashkit-go/flashkit"

// A hopperPlan says how fwd_sm90 cuts a call among the multiprocessors.
type hopperPlan struct {
	workspace
	rows   rowTiles
	splits int     // parts of the keys, put together by decode_sm80_merge
	cycles float64 // of the longest block, and of the parts; 0 where blocks take many tiles
	steps  int     // of that block
}

// What parts cost: to launch what puts them together, in cycles, and to write and read those of the keys, or of the
// heads of a group, in bytes of a cycle of a multiprocessor.
const (
	mergeCycles = 7800
	partBytes   = 4
	groupBytes  = 12
)

// partsCycles is what it costs to put parts together, of so many bytes.
func partsCycles(bytes, each, sms int) float64 { return mergeCycles + float64(bytes)/float64(each*sms) }

// planHopper cuts a call's query rows and keys. Where tiles of a few warpgroups are no more
// than the multiprocessors, each takes one. Where those are fewer yet, tiles are cut by keys
// too, if that gains more than it takes to put the parts together. Under a mask tiles differ in
// length: where they are no more than two for each multiprocessor, one takes a long and a short
// one; else there is a counter that deals them out.
func planHopper(p flashkit.Problem, sms int) (h hopperPlan) {
	h.splits = 1
	if hasFeatures(&p) {
		h.counters = 1
		return h
	}
	s := &families[fwdSM90]
	t, heads := s.tile(s.plans, &p), p.Batch*p.Heads
	groups, least := t.rows/groupRows, 0.
	masked := banded(p)
	if masked {
		h.rows, h.counters = rowTiles{tall: int32(ceilDiv(p.QLen, t.rows))}, 1
	} else {
		var taken float64
		h.rows, taken = cutRows(p.QLen, heads, groups, sms)
		least = taken * (t.begin + float64(ceilDiv(p.KVLen, t.keys))*t.step)
	}
	if n := ceilDiv(p.QLen, t.rows) * heads; n == 0 || n > 2*sms || n > sms && !masked {
		return h
	}
	for g := groups; g > 0; g-- {
		low, pieces := ceilDiv(p.QLen, g*groupRows), maxTiles(&p, g*groupRows, t.keys)
		if n := low * heads; masked && n > sms && n <= 2*sms {
			if c := s.cutHopper(&p, &t, g, 1, pairSteps(&p, low, g*groupRows, t.keys, sms), sms); least == 0 || c.cycles < least {
				h, least = c, c.cycles
			}
		}
		for splits := 1; splits <= max(1, pieces) && low*heads*splits <= sms; {
			steps := ceilDiv(pieces, splits)
			if splits == 1 && masked || splits > 1 && g <= splitGroups {
				if c := s.cutHopper(&p, &t, g, splits, steps, sms); least == 0 || c.cycles < least {
					h, least = c, c.cycles
				}
			}
			if steps <= 1 {
				break
			}
			splits = ceilDiv(pieces, steps-1) // those between have as many steps, and more parts
		}
	}
	return h
}

// planPart is planHopper for a part of a whole, which may be all of it: keys are cut in as many parts, for tiles
// of as many rows, so that each row is computed as in a call of the whole.
func planPart(p, whole flashkit.Problem, sms int) hopperPlan {
	w, _ := packedHeads(whole)
	h := planHopper(w, sms)
	switch {
	case h.cycles > 0:
		h.rows.low = int32(ceilDiv(p.QLen, int(h.rows.lowRows)))
	case banded(w):
		h.rows.tall = int32(ceilDiv(p.QLen, families[fwdSM90].shape(&p).rows))
	}
	if h.splits > 1 {
		rows := p.Batch * p.Heads * p.QLen
		h.partO, h.partLSE = h.partO/(w.Batch*w.Heads*w.QLen)*rows, 2*rows*h.splits
	}
	return h
}

// pairSteps returns the steps of the multiprocessor that has most of them, where each takes a tile in the
// kernel's order, the longest first, and those that come last take one of the others before the first ones do.
func pairSteps(p *flashkit.Problem, tiles, rows, keys, sms int) (most int) {
	heads := p.Batch * p.Heads
	together := headsTogether(p, heads)
	_, hi := band(*p)
	steps := func(i int) int {
		size := min(together, heads-i/(together*tiles)*together)
		nth := i % (together * tiles) / size
		if hi < p.KVLen-1 {
			nth = tiles - 1 - nth
		}
		return tilesOf(p, nth, rows, keys)
	}
	for i := range sms {
		n := steps(i)
		if j := 2*sms - 1 - i; j < tiles*heads {
			n += steps(j)
		}
		most = max(most, n)
	}
	return most
}

// headsTogether returns how many heads fwd_sm90 takes together under a mask, as heads_together of fwd_sm90.cuh.
func headsTogether(p *flashkit.Problem, heads int) int {
	elements := p.KVLen * (p.Dim + p.VDim)
	if p.QLen <= fewRows {
		elements *= 2
	}
	most := max(1, min(heads, groupElements/max(1, elements)))
	for n := most; 2*n > most && n > most-fewerHeads; n-- {
		if heads%n == 0 {
			return n
		}
	}
	return most
}

const (
	groupElements = 1 << 24 // that K and V have of the heads together, or
	fewRows       = 1536    // Q and O too, which pass through the cache as fast where rows are so few
	fewerHeads    = 8       // how many numbers of heads are tried
)

// cutHopper is a plan of so many parts, of tiles of so many warpgroups.
func (s *family) cutHopper(p *flashkit.Problem, t *tile, groups, splits, steps, sms int) hopperPlan {
	h := hopperPlan{splits: splits, steps: steps, rows: rowTiles{low: int32(ceilDiv(p.QLen, groups*groupRows)), lowRows: int32(groups * groupRows)}}
	if splits > 1 {
		merged, parts := s.parts(*p), p.Batch*p.Heads*p.QLen*splits
		h.partO, h.partLSE = parts*families[decodeSM80].padded(&merged).dim, 2*parts
	}
	h.cycles = s.plans.planCycles(&h, t, p.Batch*p.Heads, sms)
	return h
}

// parts is a problem whose head dim is that of the values of the stem's instance, for what puts parts together.
func (s *family) parts(p flashkit.Problem) flashkit.Problem {
	p.Dim = s.padded(&p).vDim
	return p
}

// splitGroups are the warpgroups of the instances that take parts of the keys.
const splitGroups = 2

// shareOf returns what part of a whole step's time one takes in which so many warpgroups have rows.
func (c *costs) shareOf(used, groups int) float64 {
	switch {
	case used == 1 && groups == 2:
		return c.few
	case used == 1 && groups > 2:
		return c.lone
	case used == 2 && groups > 2 && c.duo > 0:
		return c.duo
	default:
		return groupShare(used, groups)
	}
}

// mostTiles returns the most tiles of keys that the first, the middle, or the last tile of query
// rows sees.
func maxTiles(p *flashkit.Problem, rows, keys int) (most int) {
	n := ceilDiv(p.QLen, rows)
	for _, nth := range [...]int{0, n / 2, n - 1} {
		most = max(most, tilesOf(p, nth, rows, keys))
	}
	return most
}

// tilesOf returns how many tiles of keys a tile of query rows sees.
func tilesOf(p *flashkit.Problem, nth, rows, keys int) int {
	first, _ := p.Keys(nth * rows)
	_, last := p.Keys(min((nth+1)*rows, p.QLen) - 1)
	if last <= first {
		return 0
	}
	return ceilDiv(last, keys) - first/keys
}

// inTurn returns 1 where warpgroups take turns, else 0: tiles of more than two that are dealt out are faster without.
func warpgroupTurns(dealt bool, rows int) int8 {
	if dealt && rows > splitGroups*groupRows {
		return 0
	}
	return 1
}

// forwardHopper launches fwd_sm90, and what puts the parts of the keys together.
func (l *launch) forwardHopper() error {
	p, x := &l.p, l.x
	h := planHopper(*p, l.b.dev.SMs)
	if x.whole != nil {
		h = planPart(*p, *x.whole, l.b.dev.SMs)
	}
	f, err := l.get(l.instance(h.splits, false))
	if err != nil {
		return err
	}
	var merge *function
	if h.splits > 1 {
		if merge, err = l.b.images.get(l.b.drv, decodeSM80, traitMerge, l.family.parts(*p)); err != nil {
			return err
		}
	}
	box := f.keys
	if p.Page > 0 {
		box = commonDivisor(p.Page, f.keys)
	}
	if err := l.mapTensors([...]int{f.rows, box, box, groupRows}); err != nil {
		return err
	}
	heads, sms := p.Batch*p.Heads, l.b.dev.SMs-x.spare
	x.rows, x.splits = h.rows, int32(h.splits)
	dealt, even := h.counters > 0, h.cycles == 0 && h.counters == 0
	if x.hasFeatures {
		x.rows, x.pageBox = rowTiles{tall: int32(ceilDiv(p.QLen, f.rows))}, int32(box)
		dealt, even = banded(*p) || p.Ragged || p.Score.Mask, !banded(*p)
		if x.rowSlots = x.slots(seqQStarts, p.QLen, f.rows, l.b.eager); x.rowSlots > 0 {
			x.rows.tall, even = int32(ceilDiv(int(x.rowSlots), p.Batch)), false // the mean of all sequences
		}
	}
	if even { // for the multiprocessors that it has
		x.rows, _ = cutRows(p.QLen, heads, f.rows/groupRows, sms)
	}
	tiles := int(x.rows.tall+x.rows.low) * heads * h.splits
	blocks := min(sms, tiles)
	if !x.hasFeatures {
		if x.beside && (h.cycles == 0 || tiles > blocks) {
			dealt, h.counters = true, 1
		}
		x.skew = warpgroupTurns(dealt, f.rows)
	}
	return l.within(&h.workspace, func() error {
		if !dealt {
			x.counters = 0
		} else if err := l.b.drv.MemsetD32Async(x.counters, 0, 1, l.s); err != nil {
			return err
		}
		if err := l.run(f, blocks, true); err != nil || h.splits == 1 {
			return err
		}
		return l.run(merge, ceilDiv(heads*p.QLen, merge.rows), false)
	})
}
