package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// clearRows zeros O and sets LSE to -Inf in the padding after the sequence's rows.
func (j *job) clearRows(t *seqTile) {
	for h := t.h; h < t.h+t.fold; h++ {
		clearRows(&j.args.O, t.QBatch, h, t.to/t.fold, t.end/t.fold)
		for i := t.to / t.fold; i < t.end/t.fold; i++ {
			j.clearStats(t.QBatch, h, i)
		}
	}
}

// clearRows zeros rows [from, to) of a head of t. Contiguous rows are cleared as one range, which
// may bypass the caches; see clearPadding.
func clearRows(t *flashkit.Tensor, b, h, from, to int) {
	n, wide := to-from, t.Shape()[3]
	if n > 1 && rowStep(t) == wide {
		n, wide = 1, n*wide
	}
	for i := range n {
		clearPadding(bytesOf(t, t.Offset(b, h, from+i), wide))
	}
}

// clearGradRows zeros dQ in the padding after the sequence's rows.
func (j *job) clearGradRows(t *seqTile) {
	if !j.call.Traits.PackedQ {
		clearRows(&j.args.DQ, t.QBatch, t.h, t.to, t.end)
	}
}

// clearGradKeys zeros dK and dV in the padding after the sequence's keys.
func (j *job) clearGradKeys(t *seqTile) {
	clearRows(&j.args.DK, t.KVBatch, t.g, t.to, t.end)
	clearRows(&j.args.DV, t.KVBatch, t.g, t.to, t.end)
}

// clearElements zeros n elements of t from offset at on.
func clearElements(t *flashkit.Tensor, at, n int) { clear(bytesOf(t, at, n)) }

// bytesOf returns the memory of n elements of t from offset at on. It returns nil if n is 0, since
// at may then be out of range.
func bytesOf(t *flashkit.Tensor, at, n int) []byte {
	switch {
	case n <= 0:
		return nil
	case t.DType() == flashkit.Float32:
		x := t.Float32s()[at:][:n]
		return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*n)
	default:
		x := t.Uint16s()[at:][:n]
		return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 2*n)
	}
}
