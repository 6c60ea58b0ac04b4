//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// bwdTimes predicts the time of a backward kernel for few query rows. An item is a KV head. The rows that
// see a key of a block are multiplied with every key of the block.
func (isa *decodeRoutines) bwdTimes(pl *plan) [3]timedPhase {
	const (
		products = 5
		rowTime  = 47 // of a row, beyond its elements and pairs
		joined   = .7 // share of start, if an item has several heads
	)
	t, dims := isa.gradPace, float64(pl.p.Dim+pl.p.VDim)
	if pl.headsPerItem > 1 {
		t.start *= joined
	}
	of := ofSequences(pl.call, func(p flashkit.Problem) timedPhase {
		heads, seen := float64(max(1, p.Batch*p.KVHeads)), visibleKeys(&p)
		rows, keys := float64(p.Heads/p.KVHeads*p.QLen), float64(seen)
		blocks := float64(max(1, ceilDiv(seen, decodeBlock)))
		elements := rows*t.element + keys*t.pack + converted(&p, (rows+keys)*t.widen)
		head := t.start*blocks + rows*rowTime + dims*elements + float64(p.KVLen-seen)*dims*float64(p.DType.Size())*clearByte
		head += pairs(&p, 1, min(decodeBlock, max(1, p.KVLen))) / heads * (products*dims*t.flop + t.pair)
		return timedPhase{nanoseconds: float64(p.Batch*p.KVHeads) * head, longest: head}
	})
	of.items = pl.work[0].Items
	return [3]timedPhase{of}
}
