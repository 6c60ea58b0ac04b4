package cuda

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A hopperPlan says how fwd_sm90 cuts a call among the multiprocessors.
type hopperPlan struct {
	workspace
	rows   rowTiles
	splits int     // parts of the keys, put together by decode_sm80_merge
	part   partID  // the instance
	cycles float64 // of the longest block, and of the parts; 0 where blocks take many tiles
	steps  int     // of that block
}

// What parts of the keys cost: to launch what puts them together, in cycles, and to write and
// read them, in bytes of a cycle of a multiprocessor.
const (
	mergeCycles = 7800
	partBytes   = 12
)

// partsCycles is what it costs to put parts together, of so many bytes.
func partsCycles(bytes, sms int) float64 { return mergeCycles + float64(bytes)/float64(partBytes*sms) }

// planHopper cuts a call's query rows and keys. Where tiles of a few warpgroups are no more
// than the multiprocessors, each takes one. Where those are fewer yet, tiles are cut by keys
// too, if that gains more than it takes to put the parts together. Else, under a mask, there
// is a counter that deals out the tiles, which differ in length.
func planHopper(p flashkit.Problem, sms int) (h hopperPlan) {
	h.splits = 1
	if featured(&p) {
		h.turn = 1
		return h
	}
	s := &stems[fwdSM90]
	t, heads := &s.costs.tiles[s.pad(p)], p.Batch*p.Heads
	groups, least := t.rows/groupRows, 0.
	masked := banded(p)
	if masked {
		h.rows, h.turn = rowTiles{tall: int32(ceilDiv(p.QLen, t.rows))}, 1
	} else {
		var taken float64
		h.rows, taken = cutRows(p.QLen, heads, groups, sms)
		least = taken * max(t.alone, t.begin+float64(ceilDiv(p.KVLen, t.keys))*t.step)
	}
	if heads*p.QLen == 0 || ceilDiv(p.QLen, t.rows)*heads > sms {
		return h
	}
	for g := groups; g > 0; g-- {
		low, pieces := ceilDiv(p.QLen, g*groupRows), mostTiles(&p, g*groupRows, t.keys)
		for splits := 1; splits <= max(1, pieces) && low*heads*splits <= sms; {
			steps := ceilDiv(pieces, splits)
			if splits == 1 && masked || splits > 1 && g <= splitGroups {
				if c := s.cutHopper(&p, t, g, splits, steps, sms); least == 0 || c.cycles < least {
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
	w, _ := folded(whole)
	h := planHopper(w, sms)
	switch {
	case h.cycles > 0:
		h.rows.low = int32(ceilDiv(p.QLen, int(h.rows.lowRows)))
	case banded(w):
		h.rows.tall = int32(ceilDiv(p.QLen, stems[fwdSM90].costs.tiles[stems[fwdSM90].pad(p)].rows))
	}
	if h.splits > 1 {
		rows := p.Batch * p.Heads * p.QLen
		h.partO, h.partLSE = h.partO/(w.Batch*w.Heads*w.QLen)*rows, 2*rows*h.splits
	}
	return h
}

// banded reports whether some rows do not see all keys.
func banded(p flashkit.Problem) bool {
	lo, hi := band(p)
	return hi < p.KVLen-1 || p.QLen-1+lo > 0
}

// cutHopper is a plan of so many parts, of tiles of so many warpgroups.
func (s *stem) cutHopper(p *flashkit.Problem, t *tile, groups, splits, steps, sms int) hopperPlan {
	h := hopperPlan{splits: splits, steps: steps, rows: rowTiles{low: int32(ceilDiv(p.QLen, groups*groupRows)), lowRows: int32(groups * groupRows)}}
	h.cycles = max(t.begin+float64(steps)*t.step*s.costs.shareOf(groups, t.rows/groupRows), t.alone)
	if splits > 1 {
		m := &stems[decodeSM80]
		dim, parts := m.dims[m.pad(s.parts(*p))].dim, p.Batch*p.Heads*p.QLen*splits
		h.part, h.partO, h.partLSE = partSplit, parts*dim, 2*parts
		h.cycles += partsCycles(4*h.partO, sms)
	}
	return h
}

// parts is a problem whose head dim is that of the values of the stem's instance, for what puts parts together.
func (s *stem) parts(p flashkit.Problem) flashkit.Problem {
	p.Dim = s.dims[s.pad(p)].vDim
	return p
}

// splitGroups are the warpgroups of the instances that take parts of the keys.
const splitGroups = 2

// shareOf returns what part of a whole step's time one takes in which so many warpgroups have rows.
func (c *costs) shareOf(used, groups int) float64 {
	if used == 1 && groups > 1 {
		return max(c.few, groupShare(1, groups))
	}
	return groupShare(used, groups)
}

// mostTiles returns the most tiles of keys that the first, the middle, or the last tile of query
// rows sees.
func mostTiles(p *flashkit.Problem, rows, keys int) (most int) {
	n := ceilDiv(p.QLen, rows)
	for _, tile := range [...]int{0, n / 2, n - 1} {
		first, _ := p.Keys(tile * rows)
		_, last := p.Keys(min((tile+1)*rows, p.QLen) - 1)
		if last > first {
			most = max(most, ceilDiv(last, keys)-first/keys)
		}
	}
	return most
}

func (b *Backend) enqueueHopper(id stemID, p flashkit.Problem, a *arguments, s StreamHandle) error {
	h := planHopper(p, b.dev.SMs)
	if a.whole != nil {
		h = planPart(p, *a.whole, b.dev.SMs)
	}
	f, err := b.images.get(b.drv, id, h.part, p)
	if err != nil || p.Heads*p.QLen == 0 {
		return err
	}
	var merge *function
	if h.splits > 1 { // loaded now: a later call may be captured
		if merge, err = b.images.get(b.drv, decodeSM80, partMerge, stems[id].parts(p)); err != nil {
			return err
		}
	}
	if err := b.mapTensors(a, flashkit.PassForward, p.DType, mappedShapes(p), [...]int{f.rows, f.keys, f.keys, groupRows}); err != nil {
		return err
	}
	if a.rows, a.splits = h.rows, int32(h.splits); h.cycles == 0 && h.turn == 0 { // for those that it has
		a.rows, _ = cutRows(p.QLen, p.Batch*p.Heads, f.rows/groupRows, b.dev.SMs-a.spare)
		if a.beside {
			h.turn = 1
		}
	}
	return h.within(b, a, s, func() error {
		if h.turn > 0 {
			if err := b.drv.MemsetD32Async(a.turn, 0, h.turn, s); err != nil {
				return err
			}
		}
		blocks := min(b.dev.SMs-a.spare, int(a.rows.tall+a.rows.low)*p.Batch*p.Heads*h.splits)
		if err := b.run(f, blocks, unsafe.Pointer(&a.mapped), s); err != nil || h.splits == 1 {
			return err
		}
		return b.run(merge, ceilDiv(p.Batch*p.Heads*p.QLen, merge.rows), unsafe.Pointer(&a.params), s)
	})
}

// A groupPlan says how a backward pass cuts the query heads of a group.
type groupPlan struct {
	workspace
	splits int    // parts of a group, whose dK and dV are put together by bwd_sm90_sums
	part   partID // the instance
}

// planBackward adds to the workspace of a pass what parts of groups take, which are cut as those of a whole.
func (b *Backend) planBackward(id stemID, p, whole flashkit.Problem) groupPlan {
	g := groupPlan{workspace: planBackward(id, p), splits: 1}
	s := &stems[id]
	if s.hopper && p.Heads > p.KVHeads {
		t := s.costs.tiles[s.pad(p)]
		g.splits, _ = s.cutGroup(s.costs, &t, whole, b.dev.SMs)
	}
	if g.part = s.backwardPart(&whole, b.dev.SMs); g.splits > 1 {
		g.part = partGroup
		g.partO, g.partLSE = s.groupWords(&p, g.splits)
	}
	return g
}

// backwardPart returns the instance for a call whose groups are not cut, by the whole of which it is a part.
//
// Under a mask later keys have fewer rows. Where heads share keys their blocks would come to the next head first, and wait
// there for those of earlier keys: the heads lie inside the walk over rows. Else blocks of the last keys, which have the
// fewest rows, may go first, each from its first row on: they never wait, but the longest blocks end last. Without a mask
// dV of wide heads has blocks of its own, as blocks of one length leave none to end alone.
func (s *stem) backwardPart(whole *flashkit.Problem, sms int) partID {
	if !s.hopper || featured(whole) {
		return partMain
	}
	switch dim, masked := s.dims[s.pad(*whole)].dim, banded(*whole); {
	case dim <= groupedDim && masked && whole.Heads > whole.KVHeads:
		return partRows
	case dim == upDim && s.goesUp(whole, sms):
		return partUp
	case dim == wideDim && !masked:
		return partWide
	}
	return partMain
}

// goesUp reports whether the last keys of a problem go first: where rows see all keys up to some, so few rows that the L2 cache holds
// all that blocks of several heads work on, and enough blocks.
func (s *stem) goesUp(p *flashkit.Problem, sms int) bool {
	lo, hi := band(*p)
	blocks := p.Batch * p.KVHeads * ceilDiv(p.KVLen, s.costs.tiles[s.pad(*p)].keys)
	return hi < p.KVLen-1 && p.QLen-1+lo <= 0 && p.QLen <= upRows && blocks >= upWaves*sms
}

// What instances of bwd_sm90 are for.
const (
	groupedDim = 128  // padded head dims up to it
	wideDim    = 256  // one
	upDim      = 64   // one
	upRows     = 4096 // query rows
	upWaves    = 8    // blocks for each multiprocessor
)

// stays reports whether the blocks of an instance of bwd_sm90 take one tile of keys after the other.
func (s *stem) stays(part partID, p *flashkit.Problem) bool {
	return part == partUp || part == partMain && s.dims[s.pad(*p)].dim <= groupedDim
}

// groupWords are the sums of dK, and of dV, of so many parts of each group.
func (s *stem) groupWords(p *flashkit.Problem, parts int) (ofK, ofV int) {
	d, rows := s.dims[s.pad(*p)], p.Batch*p.KVHeads*parts*p.KVLen
	return rows * d.dim, rows * d.vDim
}

// mostGroupWords bounds them: calls with more have blocks enough.
const mostGroupWords = 1 << 26

// cutGroup returns into how many parts the query heads of a group are cut, each of which is
// like a key head with fewer query heads, and the cycles. More blocks keep more
// multiprocessors busy, but their dK and dV are written, read and added.
func (s *stem) cutGroup(c *costs, t *tile, p flashkit.Problem, sms int) (parts int, cycles float64) {
	parts, cycles = 1, s.backwardCycles(c, t, p, sms)
	group := p.Heads / max(1, p.KVHeads)
	if !s.hopper || featured(&p) || p.Batch*p.QLen*p.KVLen == 0 {
		return parts, cycles
	}
	for n := 2; n <= group; n++ {
		ofK, ofV := s.groupWords(&p, n)
		if group%n != 0 || ofK > mostGroupWords {
			continue
		}
		q := p
		q.KVHeads *= n
		if x := s.backwardCycles(c, t, q, sms) + partsCycles(2*4*(ofK+ofV), sms); x < cycles {
			parts, cycles = n, x
		}
	}
	return parts, cycles
}
