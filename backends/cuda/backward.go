package cuda

import (
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
)

// A backwardPlan says how a backward pass is cut among blocks.
type backwardPlan struct {
	workspace
	backwardCut
	part partID // the instance
	tile int16  // of params
}

// A backwardCut says which blocks share a tile of keys, and where in the rows they begin.
type backwardCut struct {
	splits int  // parts of the query heads of a group, whose dK and dV are put together by bwd_sm90_sums
	halves bool // two blocks have every other tile of query rows each, and put dK and dV together
	skew   int8 // of params
}

// planBackward adds to the workspace of a pass what the cut of a whole takes, of which p is a part.
func (b *Backend) planBackward(id stemID, p, whole flashkit.Problem) backwardPlan {
	g := backwardPlan{workspace: planBackward(id, p), backwardCut: backwardCut{splits: 1}}
	s := &stems[id]
	if !s.hopper || featured(&p) || whole.Batch*whole.Heads*whole.QLen*whole.KVLen == 0 {
		return g
	}
	t := s.plans.tiles[s.pad(p)]
	g.backwardCut, _ = s.cutBackward(s.plans, &t, whole, b.dev.SMs, b.pairs())
	switch {
	case g.splits > 1:
		g.part = partGroup
		g.partO, g.partLSE = s.groupWords(&p, g.splits)
	case g.halves && p.QLen == whole.QLen:
		g.part = partPairs
	case !g.halves:
		g.part = s.backwardPart(&whole, b.dev.SMs)
	}
	if g.skew != 0 { // two sums of dQ
		g.dqSum, g.turn = 2*g.dqSum, 2*g.turn-1
		g.tile = firstTile(&t, &p, &whole)
	}
	return g
}

// backwardPart returns the instance for a call whose groups are not cut, by the whole of which it is a part.
//
// Under a mask later keys have fewer rows. Where heads share keys their blocks would come to the next head first, and wait
// there for those of earlier keys: the heads lie inside the walk over rows. Else blocks of the last keys, which have the
// fewest rows, may go first, each from its first row on: they never wait, but the longest blocks end last. dV of
// wide heads has blocks of its own where no blocks wait long for others: without a mask, or if rows are few and blocks are not.
func (s *stem) backwardPart(whole *flashkit.Problem, sms int) partID {
	if !s.hopper || featured(whole) {
		return partMain
	}
	switch dim, masked := s.dims[s.pad(*whole)].dim, banded(*whole); {
	case dim <= groupedDim && masked && whole.Heads > whole.KVHeads:
		return partRows
	case dim == upDim && s.goesUp(whole, sms):
		return partUp
	case dim == wideDim && (!masked || whole.QLen <= wideRows && s.backwardBlocks(whole) > sms):
		return partWide
	}
	return partMain
}

// goesUp reports whether the last keys of a problem go first: where rows see all keys up to some, so few rows that the L2 cache holds
// all that blocks of several heads work on, and enough blocks.
func (s *stem) goesUp(p *flashkit.Problem, sms int) bool {
	lo, hi := band(*p)
	return hi < p.KVLen-1 && p.QLen-1+lo <= 0 && p.QLen <= upRows && s.backwardBlocks(p) >= upWaves*sms
}

// backwardBlocks returns how many blocks have the tiles of keys of a problem.
func (s *stem) backwardBlocks(p *flashkit.Problem) int {
	d := s.pad(*p)
	return p.Batch * p.KVHeads * ceilDiv(p.KVLen, s.plans.tiles[d].keys) * s.dims[d].shares
}

// What instances of bwd_sm90 are for.
const (
	groupedDim = 128  // padded head dims up to it
	wideDim    = 256  // one
	wideRows   = 2048 // query rows under a mask
	upDim      = 64   // one
	upRows     = 4096 // query rows
	upWaves    = 8    // blocks for each multiprocessor
)

// stays reports whether the blocks of an instance of bwd_sm90 take one tile of keys after the other.
func (s *stem) stays(part partID, p *flashkit.Problem) bool {
	return part == partUp || part == partMain && s.dims[s.pad(*p)].dim <= groupedDim
}

// describe says in the arguments how the pass is cut.
func (g *backwardPlan) describe(a *params) {
	a.splits, a.skew, a.tile, a.halves = int32(g.splits), g.skew, g.tile, 0
	if g.halves {
		a.halves = 1
	}
}

// pairs reports whether the device and its driver have pairs of blocks.
func (b *Backend) pairs() bool { return b.dev.Major == 9 && b.drv.LaunchDependentCluster != nil }

// firstTile returns the tile of rows of a whole that a part begins with or, below 0, the tile of keys, as the bands say.
func firstTile(t *tile, p, whole *flashkit.Problem) int16 {
	at := p.Band.Diagonal(p.QLen, p.KVLen) - whole.Band.Diagonal(whole.QLen, whole.KVLen)
	if at > 0 {
		return int16(at / t.rows)
	}
	return int16(at / t.keys)
}

// groupWords are the sums of dK, and of dV, of so many parts of each group.
func (s *stem) groupWords(p *flashkit.Problem, parts int) (ofK, ofV int) {
	d, rows := s.dims[s.pad(*p)], p.Batch*p.KVHeads*parts*p.KVLen
	return rows * d.dim, rows * d.vDim
}

// What a cut costs or needs.
const (
	mostGroupWords = 1 << 26 // bounds groupWords: calls with more have blocks enough
	meetCycles     = 16000   // until the blocks of a pair have begun together, and added up their dK and dV
)

// cutBackward returns how a pass is cut among blocks, and the cycles. The query heads of a group may be cut into
// parts, each of which is like a key head with fewer query heads. More blocks keep more multiprocessors busy, but
// their dK and dV are written, read and added. Or two blocks share the rows of a tile of keys, if all of them run at once. Where all rows see all keys,
// blocks of a head begin at different rows, so that none waits for another.
func (s *stem) cutBackward(c *costs, t *tile, p flashkit.Problem, sms int, pairs bool) (cut backwardCut, cycles float64) {
	cut.splits = 1
	if !s.hopper || featured(&p) || p.Batch*p.QLen*p.KVLen == 0 {
		return cut, s.backwardCycles(c, t, p, sms, cut)
	}
	cut.skew = s.skew(t, p, sms, cut)
	cycles = s.backwardCycles(c, t, p, sms, cut)
	group := p.Heads / max(1, p.KVHeads)
	for n := 2; n <= group; n++ {
		ofK, ofV := s.groupWords(&p, n)
		if group%n != 0 || ofK > mostGroupWords {
			continue
		}
		parts, q := backwardCut{splits: n}, p
		if s.dims[s.pad(p)].dim > groupedDim { // else rows lie outside, the heads of a group inside
			parts.skew = s.skew(t, p, sms, parts)
		}
		q.KVHeads *= n
		if x := s.backwardCycles(c, t, q, sms, parts) + partsCycles(2*4*(ofK+ofV), sms); x < cycles {
			cut, cycles = parts, x
		}
	}
	if all := p.Batch * p.KVHeads * ceilDiv(p.KVLen, t.keys); pairs && s.dims[s.pad(p)].dim <= groupedDim && 2*all <= sms {
		halves := backwardCut{splits: 1, halves: true}
		halves.skew = s.skew(t, p, sms, halves)
		if x := s.backwardCycles(c, t, p, sms, halves); x < cycles {
			cut, cycles = halves, x
		}
	}
	return cut, cycles
}

// mostSkewed bounds the blocks that begin at different rows, for each multiprocessor: where more take turns, those of the
// next heads fill the gaps, and a second sum of dQ costs more than the rest of them.
const mostSkewed = 2

// skew says where the blocks of a head begin: that of tile j of the keys at tile j<<(skew-1) of the rows, or at tile
// j>>-skew, of those that a block walks. It is 0 where all begin at the last ones, as where some rows do not see all keys.
func (s *stem) skew(t *tile, p flashkit.Problem, sms int, cut backwardCut) int8 {
	rows, keys := ceilDiv(p.QLen, t.rows), ceilDiv(p.KVLen, t.keys)
	blocks := p.Batch * p.KVHeads * cut.splits * keys * s.dims[s.pad(p)].shares
	if cut.halves {
		rows, blocks = ceilDiv(rows, 2), 2*blocks
	}
	switch {
	case banded(p) || keys == 1 || blocks > mostSkewed*sms || max(rows, keys) > math.MaxInt16:
		return 0
	case rows >= keys:
		return int8(bits.Len(uint(rows / keys)))
	}
	return -int8(bits.Len(uint(ceilDiv(keys, rows) - 1)))
}
