//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// bwdTimes predicts the time of a backward kernel for few query rows. An item is a KV head. Every row
// of a block is multiplied with every key, the hidden ones included.
func (isa *decodeRoutines) bwdTimes(pl *plan) [3]timedPhase {
	const products = 5
	t, dims := isa.gradPace, float64(pl.p.Dim+pl.p.VDim)
	row := 170. // nanoseconds of a row, beyond its elements and pairs
	if pl.headsPerItem > 1 {
		const cached = .45 // share of the time of an element
		t.start, row = 390, 140
		t.element, t.pack = cached*t.element, cached*t.pack
	}
	of := ofSequences(pl.call, func(p flashkit.Problem) timedPhase {
		rows, keys := float64(p.Heads/p.KVHeads*p.QLen), float64(p.KVLen)
		head := t.start + rows*(row+dims*t.element) + keys*dims*t.pack + rows*keys*(products*dims*t.flop+t.pair)
		return timedPhase{nanoseconds: float64(p.Batch*p.KVHeads) * head, longest: head}
	})
	of.items = pl.work[0].Items
	return [3]timedPhase{of}
}
