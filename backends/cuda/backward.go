package cuda

import (
	"errors"
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
)

// A backwardPlan is the workspace and the partition of a backward pass.
type backwardPlan struct {
	workspace
	backwardCut
	tile int16 // position of a partial call in the whole problem: see firstTile
}

// A backwardCut is the partition of a backward pass among blocks.
type backwardCut struct {
	splits int  // each group of query heads is cut into this many parts; bwd_sm90_sums adds the parts' dK and dV
	halves bool // two blocks share a key tile: each block loops over every second row tile, then the dK and dV of the two blocks are added
	skew   int8 // code for the row tiles at which the blocks begin their loops: see (*family).skew. From `chains` on, 2^(skew-chains) consecutive key tiles share a sum of dQ
}

// planBackward returns the plan of a backward pass of p, partitioned as for the problem `whole`. p
// is a part of `whole`, or equal to `whole`.
func (b *Backend) planBackward(id familyID, p, whole flashkit.Problem) backwardPlan {
	g := backwardPlan{workspace: backwardWorkspace(id, p), backwardCut: backwardCut{splits: 1}}
	s := &families[id]
	if !s.hopper || hasFeatures(&p) || whole.Batch*whole.Heads*whole.QLen*whole.KVLen == 0 {
		return g
	}
	g.backwardCut = s.cutBackward(&whole, b.dev.SMs, b.pairs())
	if g.splits > 1 {
		g.partO, g.partLSE = s.groupWords(&p, g.splits)
	}
	if g.skew != 0 { // blocks add to several sums of dQ
		t := s.shape(&p)
		g.tile = firstTile(t, &p, &whole)
		sums := g.sums(ceilDiv(p.KVLen, t.keys), max(0, -int(g.tile)))
		g.dqSum, g.counters = sums*g.dqSum, sums*(g.counters-1)+1
	}
	return g
}

// headsInside reports whether traitGroups makes a call faster. This requires a mask like a causal
// mask. It also requires more than two row tiles, or at least rowsKeys keys at padded head dim
// groupedDim. Blocks of such calls wait longest to add to dQ.
func (s *family) headsInside(p *flashkit.Problem) bool {
	t := s.shape(p)
	return causalLike(p) && (p.QLen > 2*t.rows || p.KVLen >= rowsKeys && s.padded(p).dim == groupedDim)
}

// causalLike reports whether each row sees all keys up to a limit that rises by one per row, as
// under a causal mask.
func causalLike(p *flashkit.Problem) bool {
	lo, hi := band(*p)
	return hi < p.KVLen-1 && p.QLen-1+lo <= 0
}

// splitsDV reports whether a call is faster with traitWide: separate blocks compute dK and dV.
func (s *family) splitsDV(p *flashkit.Problem, sms int) bool {
	heads := p.Batch * p.KVHeads
	steps := p.Heads / p.KVHeads * ceilDiv(p.QLen, s.shape(p).rows)
	return s.backwardBlocks(p) > sms && min(heads, backwardTogether)*(steps+1) >= splitDVSteps && (!banded(*p) || p.QLen <= wideRows)
}

// reverses reports whether traitUp makes a call faster. This requires a mask like a causal mask,
// many blocks, and few query rows: the L2 cache then holds the rows of several heads. With more
// keys than rows, several blocks begin at the same row and wait for each other. The waits cost most
// if blocks loop over few rows. Below squareRows rows, the number of rows must therefore exceed 3/4
// of the number of keys.
func (s *family) reverses(p *flashkit.Problem, sms int) bool {
	square := p.QLen >= squareRows || 4*p.QLen > 3*p.KVLen
	return causalLike(p) && square && p.QLen <= upRows && s.backwardBlocks(p) >= upWaves*sms
}

func (s *family) backwardBlocks(p *flashkit.Problem) int {
	return p.Batch * p.KVHeads * ceilDiv(p.KVLen, s.shape(p).keys) * s.padded(p).shares
}

// Limits of the instances of bwd_sm90.
const (
	groupedDim   = 128  // maximum padded head dim of traitGroups, traitPairs and traitOnce
	wideDim      = 256  // padded head dim of traitWide
	wideRows     = 2048 // maximum query rows of traitWide under a mask
	upDim        = 64   // padded head dim of traitUp
	upRows       = 4096 // maximum query rows of traitUp
	squareRows   = 2048 // minimum query rows with which traitUp permits many more keys than rows
	upWaves      = 8    // minimum blocks per multiprocessor of traitUp
	splitDVSteps = 32   // minimum loop iterations for traitWide, summed over the heads that run at once
	rowsKeys     = 8192 // minimum keys with which one or two row tiles suffice for traitGroups
)

func (g *backwardPlan) setParams(a *params) {
	a.splits, a.skew, a.tile, a.halves = int32(g.splits), g.skew, g.tile, 0
	if g.halves {
		a.halves = 1
	}
}

// pairs reports whether device and driver support clusters of two blocks.
func (b *Backend) pairs() bool { return b.dev.Major == 9 && b.drv.LaunchDependentCluster != nil }

// firstTile returns the position of p, a range of rows or keys, in the problem whole. For a range
// of rows, the position is the index of the first row tile. For a range of keys, it is minus the
// index of the first key tile. The position follows from the shift between the bands of p and
// whole.
func firstTile(t *blockShape, p, whole *flashkit.Problem) int16 {
	at := p.Band.Diagonal(p.QLen, p.KVLen) - whole.Band.Diagonal(whole.QLen, whole.KVLen)
	if at > 0 {
		return int16(at / t.rows)
	}
	return int16(at / t.keys)
}

// groupWords returns the sizes of all partial dK and of all partial dV, in words of 4 bytes, if
// each group of query heads is cut into the given number of parts.
func (s *family) groupWords(p *flashkit.Problem, parts int) (ofK, ofV int) {
	d, rows := s.padded(p), p.Batch*p.KVHeads*parts*p.KVLen
	return rows * d.dim, rows * d.vDim
}

// Limits for cutting groups of query heads into parts. Groups stay whole if the partial dK would
// exceed maxGroupWords words of 4 bytes. They also stay whole above maxTilesPerSM key tiles per
// multiprocessor, because one block per key tile then keeps all multiprocessors busy.
const (
	maxGroupWords = 1 << 26
	maxTilesPerSM = 2
)

// cutBackward returns the partition with the fewest predicted cycles. A partition may cut a group's
// query heads into parts, each handled like a KV head with fewer query heads. Parts make more
// blocks, which keep more multiprocessors busy, but the partial dK and dV must be stored, loaded
// and added. Alternatively, two blocks share a key tile, each with half of the query rows, if all
// blocks then run at the same time. If all rows see all keys, the blocks of a head may begin at
// different rows, so that no block waits to add to dQ.
func (s *family) cutBackward(p *flashkit.Problem, sms int, pairs bool) (cut backwardCut) {
	cut.splits = 1
	if !s.hopper || hasFeatures(p) || p.Batch*p.QLen*p.KVLen == 0 {
		return cut
	}
	t := s.tile(s.plans, p)
	cut.skew = s.skew(&t.blockShape, *p, sms, cut)
	least := s.cutCycles(s.plans, &t, *p, sms, cut)
	take := func(x backwardCut) {
		if cycles := s.cutCycles(s.plans, &t, *p, sms, x); cycles < least {
			cut, least = x, cycles
		}
	}
	group, all := p.Heads/max(1, p.KVHeads), p.Batch*p.KVHeads*ceilDiv(p.KVLen, t.keys)
	for n := 2; n <= group && all <= maxTilesPerSM*sms; n++ {
		if ofK, _ := s.groupWords(p, n); group%n != 0 || ofK > maxGroupWords {
			continue
		}
		take(backwardCut{splits: n})
	}
	if pairs && s.padded(p).dim <= groupedDim && 2*all <= sms && p.QLen > t.rows {
		halves := backwardCut{splits: 1, halves: true}
		halves.skew = s.skew(&t.blockShape, *p, sms, halves)
		take(halves)
	}
	for code := range s.chainCodes(&t.blockShape, p, sms) {
		x := cut
		x.skew = chains + int8(code)
		take(x)
	}
	return cut
}

func (s *family) cutCycles(c *costs, t *tile, p flashkit.Problem, sms int, cut backwardCut) (cycles float64) {
	if cut.splits > 1 {
		cycles = s.sumsCycles(c, &p, cut.splits, sms)
		p.KVHeads *= cut.splits
	}
	if cut.skew >= chains {
		cycles += s.chainCycles(t, &p, sms, cut)
	}
	return cycles + s.backwardCycles(c, t, p, sms, cut)
}

// sumsCycles returns the cycles in which bwd_sm90_sums adds up the partial dK and dV of each group
// of query heads. A thread loads the parts of a group one after the other.
func (s *family) sumsCycles(c *costs, p *flashkit.Problem, parts, sms int) float64 {
	ofK, ofV := s.groupWords(p, parts)
	chunks := ceilDiv(min(p.KVLen, sumRows)*ceilDiv(max(p.Dim, p.VDim), 8), sumThreads)
	waves := ceilDiv(2*p.Batch*p.KVHeads*ceilDiv(p.KVLen, sumRows), sumBlocks*sms)
	return max(partsCycles(2*4*(ofK+ofV), groupBytes, sms), mergeCycles+float64(waves*chunks*parts)*sumCycles)
}

// The launch of bwd_sm90_sums: keys of a block, threads of a block, and blocks per multiprocessor.
const (
	sumRows    = 64
	sumThreads = 256
	sumBlocks  = 4
)

// Limits of skewed starts. A block owns a key tile and loops over the row tiles of a head. By
// default, the blocks of a head add to dQ of a row tile in a fixed order. Starts are skewed if
// these blocks begin their loops at different row tiles. The blocks then wait less for each other,
// but need a second array of sums of dQ.
const (
	maxSkewed  = 2 // starts are skewed only with at most this number of blocks per multiprocessor; with more, other blocks run during the waits
	skewedKeys = 8 // with more than one block per multiprocessor, starts are skewed only if a head has more key tiles than this number
	skewedRows = 8 // if query heads share keys, starts are skewed only if a head has at least this number of row tiles
)

// skew returns a code for the row tiles at which the blocks of a head begin their loops. If the
// code is positive, the block of key tile j begins at row tile j<<(code-1). If the code is
// negative, that block begins at row tile j>>-code. If the code is 0, all blocks begin at the last
// row tile. With cut.halves, these numbers count pairs of row tiles. The code is 0 if some row does
// not see all keys.
func (s *family) skew(t *blockShape, p flashkit.Problem, sms int, cut backwardCut) int8 {
	rows, keys := ceilDiv(p.QLen, t.rows), ceilDiv(p.KVLen, t.keys)
	blocks := p.Batch * p.KVHeads * cut.splits * keys * s.padded(&p).shares
	if cut.halves {
		rows, blocks = ceilDiv(rows, 2), 2*blocks
	}
	switch {
	case banded(p) || keys == 1 || rows == 1 || blocks > maxSkewed*sms || max(rows, keys) > math.MaxInt16:
		return 0
	case blocks > sms && keys <= skewedKeys, p.Heads > p.KVHeads && rows < skewedRows:
		return 0
	case rows >= keys:
		return int8(bits.Len(uint(rows / keys)))
	}
	return -int8(bits.Len(uint(ceilDiv(keys, rows) - 1)))
}

// backward launches the kernels of bwd_sm80 or bwd_sm90. The first computes delta, the second is
// the main kernel, the third rounds dQ. If groups of query heads are cut into parts, a fourth adds
// up the parts' dK and dV.
func (l *launch) backward() error {
	p, x, d := &l.p, l.x, l.family.padded(&l.p)
	w := l.b.planBackward(l.id, *p, *x.wholeOf(p))
	i := l.instance(w.splits, w.halves)
	var kernels [4]*function
	for n, k := range [...]instance{l.featureTrait() | traitDelta, i, l.featureTrait() | traitFinish, traitSums} {
		if k == traitSums && w.splits == 1 {
			break
		}
		var err error
		if kernels[n], err = l.get(k); err != nil {
			return err
		}
	}
	delta, main, finish, sums := kernels[0], kernels[1], kernels[2], kernels[3]
	w.setParams(&x.params)
	heads, after := p.Batch*p.Heads, l.b.drv.LaunchKernel
	deltas, finishes := max(1, heads*ceilDiv(p.QLen, delta.rows)), w.finishBlocks()*heads*ceilDiv(p.QLen, finish.rows) // at least one block, because delta also zeroes the counters
	blocks := p.Batch * p.KVHeads * ceilDiv(p.KVLen, main.keys) * w.splits
	if l.family.hopper {
		if l.b.drv.LaunchDependent != nil {
			after = l.b.drv.LaunchDependent
		}
		if x.hasFeatures {
			blocks, deltas, finishes = l.slotBlocks(main, delta, blocks, deltas, finishes)
		}
		if blocks *= d.shares; i.persistent(d) {
			blocks = min(blocks, l.b.dev.SMs-x.spare)
		}
		if err := l.mapTensors([...]int{main.rows, main.keys, main.keys, main.rows}); err != nil {
			return err
		}
	}
	return l.within(&w.workspace, func() error {
		if x.hasFeatures {
			if err := l.placeDelta(); err != nil {
				return err
			}
		}
		if err := errors.Join(l.clearSums(&w), l.run(delta, deltas, false)); err != nil {
			return err
		}
		err := error(nil)
		if i == traitPairs {
			err = l.b.drv.LaunchDependentCluster(main.handle, 2*blocks, main.threads, main.shared, 2, l.s, l.block(true))
		} else {
			err = main.run(after, blocks, l.block(l.family.hopper), l.s)
		}
		if err != nil {
			return err
		}
		if err := finish.run(after, finishes, l.block(false), l.s); err != nil || w.splits == 1 {
			return err
		}
		return l.run(sums, 2*p.Batch*p.KVHeads*ceilDiv(p.KVLen, sums.rows), false)
	})
}

// backwardF32 launches bwd_f32: the kernel that computes delta, then the main kernel. A block of
// the main kernel owns either keys or query rows.
func (l *launch) backwardF32() error {
	p := &l.p
	main, err := l.get(l.instance(1, false))
	if err != nil {
		return err
	}
	delta, err := l.get(l.featureTrait() | traitDelta)
	if err != nil {
		return err
	}
	columns := f32Columns
	if l.x.hasFeatures { // features take registers, so a block holds fewer columns
		columns = f32KeyColumns
	}
	w, heads := backwardWorkspace(l.id, *p), p.Batch*p.Heads
	keys := ceilDiv(p.KVLen, main.keys) * p.Batch * p.KVHeads * f32Parts(l.id, *p, max(p.Dim, p.VDim), f32KeyColumns)
	rows := ceilDiv(p.QLen, main.rows) * heads * f32Parts(l.id, *p, p.Dim, columns)
	return l.within(&w, func() error {
		if l.x.hasFeatures {
			if err := l.placeDelta(); err != nil {
				return err
			}
		}
		if err := l.run(delta, heads*ceilDiv(p.QLen, delta.rows), false); err != nil {
			return err
		}
		return l.run(main, keys+rows, false)
	})
}

// slotBlocks returns the numbers of blocks of bwd_sm90's main, delta and finish kernels for packed
// sequences. The arguments blocks, deltas and finishes are these numbers if every sequence gets the
// same number of tiles as the longest sequence. If most sequences are much shorter, slotBlocks
// returns smaller numbers: see slots.
func (l *launch) slotBlocks(main, delta *function, blocks, deltas, finishes int) (int, int, int) {
	x, p, eager := l.x, &l.p, l.b.eager
	if x.keySlots = x.slots(seqKVStarts, p.KVLen, main.keys, eager); p.KVHeads < slotHeads && !eager {
		x.keySlots = 0
	}
	if x.keySlots > 0 {
		blocks = int(x.keySlots) * p.KVHeads
	}
	if x.rowSlots = x.slots(seqQStarts, p.QLen, delta.rows, eager); x.rowSlots > 0 {
		deltas, finishes = int(x.rowSlots)*p.Heads, int(x.rowSlots)*p.Heads
	}
	return blocks, deltas, finishes
}

// placeDelta sets the location of delta in the arguments of kernels with features. For bwd_sm90 it
// also decides whether the kernel writes DBias directly.
func (l *launch) placeDelta() error {
	x, heads := l.x, l.p.Batch*l.p.Heads
	rows, step := ceilDiv(l.p.QLen, backwardRows)*backwardRows, 2
	at := x.params.delta + 4 // delta is stored next to LSE
	switch l.id {
	case bwdSM90:
		rows, step = ceilDiv(l.p.QLen, hopperRows)*hopperRows, 1
		at = x.params.delta + Pointer(4*heads*rows)
	case bwdF32:
		rows, step = l.p.QLen, 1
		at = x.params.delta + Pointer(4*heads*rows)
	}
	x.features.delta, x.deltaRows, x.deltaStep = at, int32(rows), int32(step)
	if l.id == bwdSM90 {
		return l.keepApart()
	}
	return nil
}

// keepApart lets bwd_sm90 write DBias directly if there is no softcap, and no element of DBias sums
// several batches, heads or rows. The kernel does not write elements that the band or the sequence
// lengths hide. If there are such elements, keepApart first zeroes DBias, or changes nothing if
// DBias is not dense.
func (l *launch) keepApart() error {
	p, x := &l.p, l.x
	v, n := &x.dbias, x.dbiasShape
	if v.data == 0 || p.Score.Softcap != 0 || int(n[0]) != p.Batch || int(n[1]) != p.Heads || int(n[2]) != p.QLen {
		return nil
	}
	if p.Ragged || banded(*p) {
		size := p.DType.Size()
		if x.dbiasWide != 0 {
			size = 4
		}
		rows, bytes := int64(p.QLen), p.Batch*p.Heads*p.QLen*p.KVLen*size
		dense := [...]bool{p.QLen == 1 || v.row == int64(p.KVLen), p.Heads == 1 || v.head == rows*int64(p.KVLen), p.Batch == 1 || v.batch == rows*int64(p.Heads*p.KVLen)}
		if bytes%4 != 0 || dense != [3]bool{true, true, true} {
			return nil
		}
		if bytes > 0 {
			if err := l.b.drv.MemsetD32Async(v.data, 0, bytes/4, l.s); err != nil {
				return err
			}
		}
	}
	x.dbiasApart = 1
	return nil
}
