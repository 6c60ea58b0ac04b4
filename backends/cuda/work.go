package cuda

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// A load is the work of the blocks that process one head. A block that owns a row tile runs one
// step for each key tile that its rows see. A block that owns a key tile runs one step for each row
// tile that sees its keys, in each query head of the group.
type load struct {
	blocks, empty float64             // number of blocks with and without work
	steps, most   float64             // steps of a block with work: mean and maximum
	lastSaved     float64             // fraction of a block's time saved in a head's last tile
	sampled       int                 // number of sampled blocks with work
	each          [maxSampled]float64 // steps of the sampled blocks, descending
}

// maxSampled is the maximum number of tiles of a head that are sampled.
const maxSampled = 32

// load counts the steps of the blocks that process one head. If rows is true, blocks own query rows
// and loop over keys. Otherwise blocks own keys and loop over the rows of the group's query heads.
func (s *family) load(c *costs, t *tile, p flashkit.Problem, rows bool) (l load) {
	own, owned, walked, group, see := t.rows, p.QLen, t.keys, 1, p.Keys
	if !rows {
		own, owned, walked, group, see = t.keys, p.KVLen, t.rows, p.Heads/p.KVHeads, p.Queries
	}
	n := ceilDiv(owned, own)
	sampled := min(n, maxSampled)
	for i := range sampled {
		first := i * n / sampled * own
		if i == sampled-1 {
			first = (n - 1) * own
		}
		from, wholeTo := see(first)
		wholeFrom, to := see(min(first+own, owned) - 1)
		if to <= from {
			continue
		}
		all := (to-1)/walked - from/walked + 1
		cut := all - max(0, wholeTo/walked-ceilDiv(wholeFrom, walked))
		steps := (float64(all) + c.edge*float64(cut)) * float64(group)
		l.steps += steps
		l.most = max(l.most, steps)
		at := l.sampled // insert the block, the longest first
		for l.sampled++; at > 0 && l.each[at-1] < steps; at-- {
			l.each[at] = l.each[at-1]
		}
		l.each[at] = steps
	}
	l.steps /= float64(max(1, l.sampled))
	l.blocks = float64(n) * float64(l.sampled) / float64(max(1, sampled))
	l.empty = float64(n) - l.blocks
	return l
}

// trimLast subtracts the time saved in a head's last tile if at most half of its rows are used.
// Some warps then have no rows.
func (l *load) trimLast(c *costs, t *tile, rows int) {
	if left := rows - (ceilDiv(rows, t.rows)-1)*t.rows; c.few == 0 || 2*left > t.rows {
		return
	}
	if rows <= t.rows {
		t.step, t.alone = t.step*c.few, t.alone*c.few
		return
	}
	l.lastSaved = 1 - c.few
}

// cycles returns the time of all heads' blocks: whole waves, then the rest. Under a mask, short
// blocks fill the gaps between long ones.
func (l *load) cycles(c *costs, t *tile, heads, sms int) float64 {
	perSM := float64(t.perSM)
	all, slots := l.blocks*float64(heads), float64(sms)*perSM
	full, alone := t.begin+l.steps*max(t.step, t.alone), max(t.step/perSM, t.alone)
	whole, rest := math.Floor(all/slots), 0.
	if each := math.Ceil((all - whole*slots) / float64(sms)); each > 0 {
		rest = t.begin + l.steps*max(t.step*each/perSM, t.alone)
	}
	idle := l.empty * float64(heads) / slots * c.empty
	share, hidden := 1-l.lastSaved/max(1, l.blocks), c.hidden*t.begin
	switch waves := min(math.Ceil(all/slots), all/slots+c.tail); {
	case l.most == l.steps && whole == 0:
		return idle + rest
	case l.most == l.steps:
		return idle + max(full, (whole*full+rest-hidden*(math.Ceil(all/slots)-1))*share)
	case whole == 0: // the longest block runs on alone
		return idle + rest + (l.most-l.steps)*alone
	default:
		return idle + max(t.begin+l.most*alone, (waves*full-hidden*(waves-1))*share, l.pigeonhole(t, all/slots, hidden)*share)
	}
}

// pigeonhole returns a lower bound of the time of all blocks. If the blocks with at least n steps
// fill more than k waves, k+1 of these blocks must run one after the other.
func (l *load) pigeonhole(t *tile, waves, hidden float64) (cycles float64) {
	for i, steps := range l.each[:l.sampled] {
		places := math.Ceil(waves * float64(i+1) / float64(l.sampled))
		cycles = max(cycles, places*(t.begin+steps*max(t.step, t.alone))-hidden*(places-1))
	}
	return cycles
}

// In fwd_sm90_short, a last step of at most fewKeys keys takes the fraction fewKeysShare of a full
// step's time.
const (
	fewKeys      = 16
	fewKeysShare = .4
)

// shorten subtracts the time that fwd_sm90_short saves if the last tile has few keys. It returns
// the time at which the longest block of the last head ends. Blocks run head by head, the longest
// first, so this block begins when one wave is left.
func (l *load) shorten(t *tile, p *flashkit.Problem, sms int) (cycles float64) {
	if left := p.KVLen % t.keys; left > 0 && left <= fewKeys && !banded(*p) {
		l.steps, l.most = l.steps-1+fewKeysShare, l.most-1+fewKeysShare
	}
	step, waves := max(t.step, t.alone), l.blocks*float64(p.Batch*p.Heads)/float64(sms*t.perSM)
	if waves <= 1 {
		return 0
	}
	return (waves-1)*(t.begin+l.steps*step) + t.begin + l.most*step
}

// loosen adds the cost of unaligned rows, which are copied element by element. own is the number of
// rows that a block owns. step is the number of rows that a block loads in each step.
func (t *tile) loosen(c *costs, s *family, p *flashkit.Problem, own, step int) {
	pad, all := s.padded(p), s == &families[fwdSM80]
	cycles := c.loose / float64(t.warps)
	row := cycles * c.looseColumns(p, pad, all || s == &families[bwdSM80])
	t.begin += cycles * c.looseColumns(p, pad, all) * float64(own)
	t.step += row * float64(step)
	t.alone += row * float64(step)
}

// looseRow is the fixed cost of an unaligned row. The cost to copy one element is 1.
const looseRow = 16

// looseColumns returns the cost to copy one row of Dim elements and one of VDim elements, if rows
// are unaligned. The cost of an element that is copied alone is 1. Lengths are rounded up to 16
// bytes. Each element of padding costs c.unused. If only one of Dim and VDim is unaligned, only its
// row counts, unless alike is true.
func (c *costs) looseColumns(p *flashkit.Problem, pad headDims, alike bool) (columns float64) {
	unit := rowAlignment / p.DType.Size()
	alike = alike || p.Dim%unit == 0 && p.VDim%unit == 0 // only the strides of these dims can be unaligned
	for _, dim := range [...][2]int{{p.Dim, pad.dim}, {p.VDim, pad.vDim}} {
		if alike || dim[0]%unit != 0 {
			used := ceilDiv(dim[0], unit) * unit
			columns += looseRow + float64(used) + c.unused*float64(max(0, dim[1]-used))
		}
	}
	return columns
}

// persistentCycles returns the cycles of fwd_sm90 and the steps of a tile. dealt means that a
// counter assigns the tiles. A warpgroup without rows leaves some of its time to the other
// warpgroups.
func persistentCycles(c *costs, t tile, p flashkit.Problem, sms int, dealt bool) (cycles, steps float64) {
	l, heads, groups := families[fwdSM90].load(c, &t, p, true), p.Batch*p.Heads, t.rows/groupRows
	if !dealt && p.QLen > groupRows {
		rows, taken := cutRows(p.QLen, heads, groups, sms)
		if g := int(rows.lowRows) / groupRows; rows.tall == 0 && g > 0 {
			taken /= groupShare(g, groups)
			t.step *= stepShare(g, groups)
		}
		return taken*(t.begin+l.steps*t.step) - max(0, taken-1)*c.hidden*t.begin, l.steps
	}
	last := groupShare(ceilDiv(p.QLen-(ceilDiv(p.QLen, t.rows)-1)*t.rows, groupRows), groups)
	switch { // the relative time of a head's last tile
	case p.QLen <= groupRows:
		t.step *= stepShare(1, groups)
	case p.QLen <= t.rows:
		t.step *= last
	case l.blocks > 1:
		l.lastSaved = 1 - last
	}
	return l.cycles(c, &t, heads, sms), l.steps
}

// Concurrent blocks belong to at most backwardTogether KV heads. If loops are short or heads
// narrow, the L2 cache holds more heads, and the limit is shortTogether. Under a mask, the data of
// these heads may exceed the L2 cache, because a head's later blocks start at nearby rows.
const (
	backwardTogether = 16
	shortTogether    = 64
	narrowDim        = 64
)

// together returns how many of `of` KV heads run at the same time. Except for traitUp, it computes
// the same number as the function together in bwd_sm90.cuh.
func (s *family) together(p *flashkit.Problem, of int) int {
	if !s.hopper {
		return backwardTogether
	}
	one, group := max(1, s.walked(p)), p.Heads/p.KVHeads
	most := min(32<<20/(one*group), backwardTogether)
	if banded(*p) {
		most = min(256<<20/one, backwardTogether)
	}
	t, dim := s.shape(p), s.padded(p).dim
	short := p.QLen*group < p.KVLen/2
	if dim > groupedDim {
		short = p.QLen <= t.rows
	}
	if short || dim <= narrowDim || p.KVLen <= 3*t.keys {
		most = max(most, min(16<<20/(one*group), shortTogether))
	}
	most = max(2, most)
	return max(1, ceilDiv(of, ceilDiv(of, most)))
}

// walked returns the bytes of Q, dO and dQ of a head.
func (s *family) walked(p *flashkit.Problem) int {
	return ceilDiv(p.QLen, hopperRows) * hopperRows * s.padded(p).dim * 8
}

// maxWaves is the maximum number of waves whose waits to add to dQ are counted.
const maxWaves = 4

// Under a mask, steps get slower if Q, dO and dQ of the concurrent heads exceed nearBytes.
const nearBytes = 64 << 20

// backwardCycles returns the cycles of a backward pass. If blocks have few steps, dQ limits the
// speed, because the blocks of a head add to the same rows of dQ one after the other.
func (s *family) backwardCycles(c *costs, t *tile, p flashkit.Problem, sms int, cut backwardCut) float64 {
	l, heads := s.load(c, t, p, false), p.Batch*p.KVHeads
	if p.DType == flashkit.Float32 { // blocks that own query rows compute dQ only
		own := s.load(c, t, p, true)
		return l.cycles(c, t, heads, sms) + own.cycles(c, t, p.Batch*p.Heads, sms)
	}
	if cut.halves { // the blocks act like blocks of twice the heads, each with half of the rows
		own := *t
		own.begin += meetCycles
		t, heads = &own, 2*heads
		half := func(steps float64) float64 { return (steps + min(steps, float64(p.Heads/p.KVHeads))/2) / 2 } // one of two halves has the odd tile
		l.steps, l.most = half(l.steps), half(l.most)
		for i := range l.each[:l.sampled] {
			l.each[i] = half(l.each[i])
		}
	}
	if s.hopper && banded(p) {
		own := *t
		t = &own
		far := 1 + farther*max(0, math.Log2(float64(min(heads, s.together(&p, heads))*(p.Heads/p.KVHeads)*s.walked(&p))/nearBytes))
		t.step, t.alone = t.step*far, t.alone*far
	}
	d := s.padded(&p)
	hop := c.hop + c.column*float64(d.dim)/float64(max(1, d.shares))
	if p.Heads/p.KVHeads*ceilDiv(p.QLen, t.rows) > 1 {
		hop += c.later
	}
	from, to := p.Keys(p.QLen - 1)
	queue := min(l.blocks, float64(ceilDiv(to-from, t.keys)+1)) // blocks that add to the same rows of dQ
	if cut.skew >= chains {
		queue = min(queue, float64(int(1)<<(cut.skew-chains)))
	}
	slots, together := float64(sms*t.perSM), s.together(&p, max(1, heads))
	first := hop * min(queue, slots/float64(min(heads, together))) // wait of the last block of the first wave
	overlap := c.overlap * slots / float64(together)               // blocks of the next heads that run before these heads end
	turns := hop * (queue + float64(ceilDiv(heads, together)-1)*max(0, queue-overlap))
	tail := l.steps // steps of the last block of the first heads
	switch {
	case !s.hopper:
	case p.Heads/p.KVHeads*ceilDiv(p.QLen, t.rows) == 1: // a block waits only for its turn to add to dQ
		first = 0
	case banded(p) && p.QLen > t.rows: // the last block has few rows, and other blocks work meanwhile
		first, tail = first*maskedWaits, float64(p.Heads/p.KVHeads)
	}
	last := hop*queue + t.begin + tail*max(t.alone, t.step/float64(t.perSM)) // until the last block of the first heads ends
	if s.hopper {
		heads *= d.shares
	}
	if s.hopper {
		waves := min(maxWaves, l.blocks*float64(heads)/slots)
		first *= 1 + laterWaits*max(0, waves-1)*float64(p.KVHeads)/float64(p.Heads)
	}
	if cut.skew != 0 && cut.skew < chains { // blocks that begin at other rows do not wait
		same := min(queue, float64(int(1)<<max(0, -cut.skew)))
		first, turns, last = hop*(same-1), hop*queue, 0
	}
	return max(l.cycles(c, t, heads, sms)+first, turns, last)
}

// decodeCycles returns the cycles of a decode kernel, the steps of a block, and the partition of the
// keys. In a step, each warp processes a piece of the keys for the query rows that it holds. Warps
// with other rows process the same pieces.
func (s *family) decodeCycles(c *costs, t *tile, p flashkit.Problem, dev *Device, loose bool, by cut) (cycles, steps float64, parts cut) {
	warpRows := t.rows / t.warps
	rows, team := p.Heads/p.KVHeads*p.QLen, 1
	for team < t.warps && team*warpRows < rows {
		team *= 2
	}
	if by.splits == 0 {
		by = s.cutOf(dev, &p)
	}
	pieces, slots := ceilDiv(seenKeys(&p), t.keys), max(1, dev.SMs)*t.perSM
	mine := ceilDiv(pieces, by.splits)
	begin, step := t.begin+c.row*float64(rows)*s.wide(&p), t.step*float64(min(team, mine))
	step = max(t.alone, step)
	if loose {
		row := c.loose * c.looseColumns(&p, s.padded(&p), false)
		step += row * float64(t.keys)
	}
	steps = float64(ceilDiv(mine, t.warps))
	return float64(ceilDiv(s.decodeTiles(&p)*by.splits, slots)) * (begin + steps*step), steps, by
}
