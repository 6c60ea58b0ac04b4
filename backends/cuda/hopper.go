package cuda

import "github.com/flashkit-go/flashkit"

// A hopperPlan is the partition of a call by fwd_sm90.
type hopperPlan struct {
	workspace
	rows   rowTiles
	splits int     // split-KV parts, merged by decode_sm80_merge
	cycles float64 // predicted cycles, with the merge of parts; 0 if blocks process many tiles
	steps  int     // steps of the longest block
}

// Costs of partial results. The launch of the kernel that merges them takes mergeCycles. A
// multiprocessor stores and loads partial O at partBytes bytes per cycle, and partial dK and dV at
// groupBytes bytes per cycle.
const (
	mergeCycles = 7800
	partBytes   = 4
	groupBytes  = 12
)

// partsCycles returns the cycles to merge the given number of bytes of partial results. A
// multiprocessor merges `each` bytes per cycle.
func partsCycles(bytes, each, sms int) float64 { return mergeCycles + float64(bytes)/float64(each*sms) }

// planHopper partitions a call's query rows and keys. With few rows it uses smaller tiles of fewer
// warpgroups, if each multiprocessor then gets at most one tile, or two tiles under a mask. With
// even fewer rows it also splits the keys, unless the merge takes longer than the split saves.
// Under a mask, tiles take different times. With at most two tiles per multiprocessor, each
// multiprocessor gets a long and a short tile. With more tiles, a counter on the device gives the
// next tile to the first free block.
func planHopper(p flashkit.Problem, sms int) (h hopperPlan) {
	h.splits = 1
	if hasFeatures(&p) {
		h.counters, h.rowBounds = 1, boundWords(&p, p.Heads)
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
			splits = ceilDiv(pieces, steps-1) // the skipped numbers of parts do not shorten the longest block
		}
	}
	return h
}

// planPart returns the plan of p, which is a part of the problem `whole` or equal to `whole`. The
// plan splits keys and sizes tiles as in a call for `whole`. Each row then has the same bits as in
// that call.
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

// pairSteps returns the maximum number of steps of a multiprocessor if each gets up to two tiles.
// The kernel assigns tiles from the longest to the shortest. The multiprocessor whose first tile is
// shortest takes a second tile first.
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

// headsTogether returns how many heads fwd_sm90 processes together under a mask. It computes the
// same number as heads_together of fwd_sm90_schedule.cuh.
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
	groupElements = 1 << 24 // maximum elements of K and V of the heads together
	fewRows       = 1536    // with at most this number of query rows, elements of Q and O count too
	fewerHeads    = 8       // maximum number of candidates for the number of heads
)

func (s *family) cutHopper(p *flashkit.Problem, t *tile, groups, splits, steps, sms int) hopperPlan {
	h := hopperPlan{splits: splits, steps: steps, rows: rowTiles{low: int32(ceilDiv(p.QLen, groups*groupRows)), lowRows: int32(groups * groupRows)}}
	if splits > 1 {
		merged, parts := s.parts(*p), p.Batch*p.Heads*p.QLen*splits
		h.partO, h.partLSE = parts*families[decodeSM80].padded(&merged).dim, 2*parts
	}
	h.cycles = s.plans.planCycles(&h, t, p.Batch*p.Heads, sms)
	return h
}

// parts returns p with Dim set to the padded head dim of V. Dim then selects the kernel that merges
// the parts of O.
func (s *family) parts(p flashkit.Problem) flashkit.Problem {
	p.Dim = s.padded(&p).vDim
	return p
}

// splitGroups is the number of warpgroups of the split-KV instances.
const splitGroups = 2

// stepShare returns the time of a step in which only `used` of a block's warpgroups have rows,
// relative to a full step.
func stepShare(used, groups int) float64 {
	if used == 1 && groups == 2 {
		return loneOfTwo
	}
	return groupShare(used, groups)
}

// maxTiles returns the maximum number of key tiles that the first, middle or last row tile sees.
func maxTiles(p *flashkit.Problem, rows, keys int) (most int) {
	n := ceilDiv(p.QLen, rows)
	for _, nth := range [...]int{0, n / 2, n - 1} {
		most = max(most, tilesOf(p, nth, rows, keys))
	}
	return most
}

// tilesOf returns the number of key tiles that the nth row tile sees.
func tilesOf(p *flashkit.Problem, nth, rows, keys int) int {
	first, _ := p.Keys(nth * rows)
	_, last := p.Keys(min((nth+1)*rows, p.QLen) - 1)
	if last <= first {
		return 0
	}
	return ceilDiv(last, keys) - first/keys
}

// warpgroupTurns returns 1 if the warpgroups of a block should use the tensor cores alternately,
// else 0. The value 0 is faster for tiles of more than two warpgroups if a counter assigns the
// tiles (dealt).
func warpgroupTurns(dealt bool, rows int) int8 {
	if dealt && rows > splitGroups*groupRows {
		return 0
	}
	return 1
}

// boundRanges launches the kernel that finds the bounds of the ranges of keys, if the call has ranges.
func (l *launch) boundRanges() error {
	if l.p.Score.Ranges == 0 {
		return nil
	}
	f, err := l.get(traitFeatures | traitBounds | traitRanges)
	if err != nil {
		return err
	}
	return l.run(f, ceilDiv(l.p.Batch*l.p.Heads*ceilDiv(l.p.QLen, hopperRows)*hopperRows, f.rows), true)
}

// forwardHopper launches fwd_sm90, and the merge of split-KV parts.
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
		dealt, even = banded(*p) || p.Ragged || p.Score.Mask || p.Score.Ranges != 0, !banded(*p) && p.Score.Ranges == 0
		if x.rowSlots = x.slots(seqQStarts, p.QLen, f.rows, l.b.eager); x.rowSlots > 0 {
			x.rows.tall, even = int32(ceilDiv(int(x.rowSlots), p.Batch)), false // the mean number of slots of a sequence
		}
	}
	if even { // cut the rows evenly among the multiprocessors that are not spared
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
		if err := l.boundRanges(); err != nil {
			return err
		}
		if err := l.run(f, blocks, true); err != nil || h.splits == 1 {
			return err
		}
		return l.run(merge, ceilDiv(heads*p.QLen, merge.rows), false)
	})
}
