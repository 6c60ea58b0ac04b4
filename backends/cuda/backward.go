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
	tile int16 // of params
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
	g.backwardCut = s.cutBackward(&whole, b.dev.SMs, b.pairs())
	if g.splits > 1 {
		g.partO, g.partLSE = s.groupWords(&p, g.splits)
	}
	if g.skew != 0 { // two sums of dQ
		g.dqSum, g.turn = 2*g.dqSum, 2*g.turn-1
		g.tile = firstTile(&s.plans.tiles[s.pad(p)], &p, &whole)
	}
	return g
}

// byRows reports whether the heads of a group lie inside the walk over rows: where rows see all keys up to some, and there are
// several tiles of rows, or so many of keys that their turns take longest.
func (s *stem) byRows(p *flashkit.Problem) bool {
	t := &s.plans.tiles[s.pad(*p)]
	return rising(p) && (p.QLen > 2*t.rows || p.KVLen >= rowsKeys && s.dims[s.pad(*p)].dim == groupedDim)
}

// rising reports whether rows see all keys up to some, and earlier rows fewer.
func rising(p *flashkit.Problem) bool {
	lo, hi := band(*p)
	return hi < p.KVLen-1 && p.QLen-1+lo <= 0
}

// apart reports whether dV has blocks of its own.
func (s *stem) apart(p *flashkit.Problem, sms int) bool {
	heads := p.Batch * p.KVHeads
	steps := p.Heads / p.KVHeads * ceilDiv(p.QLen, s.plans.tiles[s.pad(*p)].rows)
	return s.backwardBlocks(p) > sms && min(heads, backwardTogether)*(steps+1) >= apartSteps && (!banded(*p) || p.QLen <= wideRows)
}

// goesUp reports whether the last keys of a problem go first: where rows see all keys up to some, so few rows that the L2 cache holds
// all that blocks of several heads work on, and enough blocks. Where keys are more than rows, those before the diagonal begin at the
// same row and wait after all, the longer the shorter the walks are.
func (s *stem) goesUp(p *flashkit.Problem, sms int) bool {
	square := p.QLen >= squareRows || 4*p.QLen > 3*p.KVLen
	return rising(p) && square && p.QLen <= upRows && s.backwardBlocks(p) >= upWaves*sms
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
	squareRows = 2048 // query rows from which on keys may be more
	upWaves    = 8    // blocks for each multiprocessor
	apartSteps = 32   // of the blocks of several heads
	rowsKeys   = 8192 // keys
)

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

// What bounds the parts of groups: calls with more groupWords, or tiles of keys for each multiprocessor, have blocks enough.
const (
	mostGroupWords = 1 << 26
	mostWhole      = 2
)

// cutBackward returns how a pass is cut among blocks. The query heads of a group may be cut into
// parts, each of which is like a key head with fewer query heads. More blocks keep more multiprocessors busy, but
// their dK and dV are written, read and added. Or two blocks share the rows of a tile of keys, if all of them run at once. Where all rows see all keys,
// blocks of a head begin at different rows, so that none waits for another.
func (s *stem) cutBackward(p *flashkit.Problem, sms int, pairs bool) (cut backwardCut) {
	cut.splits = 1
	if !s.hopper || featured(p) || p.Batch*p.QLen*p.KVLen == 0 {
		return cut
	}
	t := &s.plans.tiles[s.pad(*p)]
	cut.skew = s.skew(t, *p, sms, cut)
	least := s.cutCycles(s.plans, t, *p, sms, cut)
	take := func(x backwardCut) {
		if cycles := s.cutCycles(s.plans, t, *p, sms, x); cycles < least {
			cut, least = x, cycles
		}
	}
	group, all := p.Heads/max(1, p.KVHeads), p.Batch*p.KVHeads*ceilDiv(p.KVLen, t.keys)
	for n := 2; n <= group && all <= mostWhole*sms; n++ {
		if ofK, _ := s.groupWords(p, n); group%n != 0 || ofK > mostGroupWords {
			continue
		}
		take(backwardCut{splits: n})
	}
	if pairs && s.dims[s.pad(*p)].dim <= groupedDim && 2*all <= sms && p.QLen > t.rows {
		halves := backwardCut{splits: 1, halves: true}
		halves.skew = s.skew(t, *p, sms, halves)
		take(halves)
	}
	return cut
}

// cutCycles are those of a pass that is cut so.
func (s *stem) cutCycles(c *costs, t *tile, p flashkit.Problem, sms int, cut backwardCut) (cycles float64) {
	if cut.splits > 1 {
		cycles = s.sumsCycles(c, &p, cut.splits, sms)
		p.KVHeads *= cut.splits
	}
	return cycles + s.backwardCycles(c, t, p, sms, cut)
}

// sumsCycles are those of adding up so many parts of each group: a thread of bwd_sm90_sums reads one part after the other.
func (s *stem) sumsCycles(c *costs, p *flashkit.Problem, parts, sms int) float64 {
	ofK, ofV := s.groupWords(p, parts)
	chunks := ceilDiv(min(p.KVLen, sumRows)*ceilDiv(max(p.Dim, p.VDim), 8), sumThreads)
	waves := ceilDiv(2*p.Batch*p.KVHeads*ceilDiv(p.KVLen, sumRows), sumBlocks*sms)
	return max(partsCycles(2*4*(ofK+ofV), groupBytes, sms), mergeCycles+float64(waves*chunks*parts)*c.sum)
}

// Of bwd_sm90_sums: keys and threads of a block, and blocks of a multiprocessor.
const (
	sumRows    = 64
	sumThreads = 256
	sumBlocks  = 4
)

// What bounds the blocks that begin at different rows, for each multiprocessor: where more take turns, those of the
// next heads fill the gaps, and a second sum of dQ costs more than the rest of them. Where they are more than the
// multiprocessors, only long turns cost more; where heads share keys, only walks that are long.
const (
	mostSkewed = 2
	skewedKeys = 8 // tiles of keys
	skewedRows = 8 // and of rows
)

// skew says where the blocks of a head begin: that of tile j of the keys at tile j<<(skew-1) of the rows, or at tile
// j>>-skew, of those that a block walks. It is 0 where all begin at the last ones, as where some rows do not see all keys.
func (s *stem) skew(t *tile, p flashkit.Problem, sms int, cut backwardCut) int8 {
	rows, keys := ceilDiv(p.QLen, t.rows), ceilDiv(p.KVLen, t.keys)
	blocks := p.Batch * p.KVHeads * cut.splits * keys * s.dims[s.pad(p)].shares
	if cut.halves {
		rows, blocks = ceilDiv(rows, 2), 2*blocks
	}
	switch {
	case banded(p) || keys == 1 || rows == 1 || blocks > mostSkewed*sms || max(rows, keys) > math.MaxInt16:
		return 0
	case blocks > sms && keys <= skewedKeys, p.Heads > p.KVHeads && rows < skewedRows:
		return 0
	case rows >= keys:
		return int8(bits.Len(uint(rows / keys)))
	}
	return -int8(bits.Len(uint(ceilDiv(keys, rows) - 1)))
}
