//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// bwdTimes predicts the time of a backward kernel for few query rows. An item is a KV head.
func (isa *decodeRoutines) bwdTimes(pl *plan) [3]timedPhase {
	const (
		products = 5
		anyRow   = 29 // of a row, beyond its elements
		rowTime  = 54 // of a row that sees a key, beyond anyRow and its pairs
		joined   = .7 // share of start, if an item has several heads
		padTime  = 22 // to convert a row of 16-bit elements from or to padded float32
	)
	t, dims := isa.adapted(&isa.gradPace), float64(pl.p.Dim+pl.p.VDim)
	if pl.headsPerItem > 1 {
		t.start *= joined
	}
	padded := 0. // conversions of a key's rows, one row at a time
	switch p := &pl.p; {
	case p.DType == flashkit.Float32 || pad(p.Dim) == p.Dim && pad(p.VDim) == p.VDim:
	case isa.inPlace(p.DType, p):
		padded = 3 // K, dK, dV
	default:
		padded = 5 // K twice, V, dK, dV
	}
	of := ofSequences(pl.call, func(p flashkit.Problem) timedPhase {
		seen, group := visibleKeys(&p), p.Heads/p.KVHeads
		rows, keys := float64(group*p.QLen), float64(seen)
		blocks, pairs := blockPairs(&p)
		elements := rows*t.element + keys*t.pack + converted(&p, rows*t.widen)
		head := t.start*float64(max(1, blocks)) + float64(group*seenRows(&p))*rowTime + rows*anyRow + keys*padded*padTime + dims*elements
		head += float64(p.KVLen-seen)*dims*float64(p.DType.Size())*clearByte + float64(group*pairs)*(products*dims*t.flop+t.pair)
		return timedPhase{nanoseconds: float64(p.Batch*p.KVHeads) * head, longest: head}
	})
	of.items = pl.work[0].Items
	return [3]timedPhase{of}
}

// blockPairs returns the number of blocks of a head's visible keys, and the number of pairs of a row and a key
// that the kernel multiplies. The rows that see a key of a block are multiplied with every key of the block.
func blockPairs(p *flashkit.Problem) (blocks, pairs int) {
	s := seqOf(p)
	first, end := seenOf(&s)
	for from := first; from < end; from += decodeBlock {
		n := min(decodeBlock, end-from)
		lo, _ := s.Queries(from)
		_, hi := s.Queries(from + n - 1)
		blocks, pairs = blocks+1, pairs+(hi-lo)*n
	}
	return blocks, pairs
}
