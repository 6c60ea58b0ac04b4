package cuda

import (
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
)

// chains is the code kChains of kernels/bwd_sm90.cuh.
const chains = 64

// sums returns the number of sums of dQ of a row tile, for a call whose first key tile is the given
// one of a larger problem.
func (c *backwardCut) sums(keyTiles, first int) int {
	switch {
	case c.skew >= chains:
		return (first+keyTiles-1)>>(c.skew-chains) - first>>(c.skew-chains) + 1
	case c.skew != 0:
		return 2
	}
	return 1
}

// finishBlocks returns the number of blocks of the finish kernel for 64 rows.
func (c *backwardCut) finishBlocks() int {
	if c.skew >= chains {
		return chainedFinish
	}
	return 1
}

// Limits of sums of dQ that key tiles share, and the costs of the finish kernel that adds them.
const (
	chainedKeys   = 6     // key tiles share sums only with at least this number of key tiles per row tile
	chainsCycles  = 35000 // cycles that several sums take besides the additions: the finish kernel starts more blocks, and more counters are cleared
	chainedFinish = 4     // blocks of the finish kernel for 64 rows, if there are several sums
	finishBytes   = 48    // bytes that a block adds per cycle
)

// chainCodes returns the number of codes for sums of dQ that consecutive key tiles share. With few
// row tiles, the blocks of many key tiles wait for each other, unless each row tile has several sums
// of dQ. The finish kernel adds these sums in order. The number is 0 at head dim 256, where the sums
// take longer than the waits, and under a mask that does not let each row see the first keys, or
// for which another order of blocks may be chosen.
func (s *family) chainCodes(t *blockShape, p *flashkit.Problem, sms int) int {
	rows, keys := ceilDiv(p.QLen, t.rows), ceilDiv(p.KVLen, t.keys)
	if masked := banded(*p); masked && (!causalLike(p) || p.Heads > p.KVHeads || s.reverses(p, sms)) || keys < chainedKeys*rows || keys > math.MaxInt16 || s.padded(p).dim >= wideDim {
		return 0
	}
	return bits.Len(uint(keys - 1))
}

// clearSums zeroes all sums of dQ if they belong to groups of key tiles, some of which a causal mask
// hides from the first rows.
func (l *launch) clearSums(w *backwardPlan) error {
	if w.skew < chains || !banded(l.p) || w.dqSum == 0 {
		return nil
	}
	return l.b.drv.MemsetD32Async(l.x.dqSum, 0, w.dqSum, l.s)
}

// chainCycles returns the cycles that the sums of cut add to the main kernel.
func (s *family) chainCycles(t *tile, p *flashkit.Problem, sms int, cut backwardCut) float64 {
	words, n := backwardWorkspace(bwdSM90, *p).dqSum, cut.sums(ceilDiv(p.KVLen, t.keys), 0)
	if n > maxGroupWords/max(1, words) {
		return math.Inf(1)
	}
	blocks := chainedFinish * p.Batch * p.Heads * ceilDiv(p.QLen, backwardRows)
	added := 4 * (n - 1) * backwardRows / chainedFinish * s.padded(p).dim // bytes that a block of the finish kernel adds
	return chainsCycles + float64(4*(n-1)*words)/float64(groupBytes*sms) + float64(ceilDiv(blocks, sms)*added)/finishBytes
}
