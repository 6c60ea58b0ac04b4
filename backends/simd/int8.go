package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// This file reads int8 keys and values. Each element is multiplied by the scale of its group.

// scaleOf returns the scales of t, which is K or V.
func (j *job) scaleOf(t *flashkit.Tensor) *flashkit.Tensor {
	if t == &j.args.K {
		return &j.args.KScale
	}
	return &j.args.VScale
}

// keyPlace returns the index of key k of a sequence in the first dimension of K and V, the key's row
// there, and the number of keys from k to the end of the sequence or page.
func (j *job) keyPlace(s *flashkit.Seq, b, k int) (batch, row, run int) {
	if j.p.Page == 0 {
		return s.KVBatch, s.K0 + k, s.M - k
	}
	all := j.args.Seqs.Pages
	at := k % j.p.Page
	return int(all[b*(len(all)/j.p.Batch)+k/j.p.Page]), at, min(j.p.Page-at, s.M-k)
}

// dequantizeKeys sets buf to n keys of KV head g of sequence b, from key k0 on. t is K or V. Rows of
// buf have no gaps.
func (j *job) dequantizeKeys(t *flashkit.Tensor, s *flashkit.Seq, b, g, k0, n int, buf []float32, rows rowDequantizer) {
	dim, scale := t.Shape()[3], j.scaleOf(t)
	for i := 0; i < n; {
		batch, row, run := j.keyPlace(s, b, k0+i)
		run = min(run, n-i)
		rows(buf[i*dim:], t, scale, batch, g, row, run, j.p.Int8Group)
		i += run
	}
}

// A rowDequantizer sets dst to n rows of head g of a batch of t, from the given row on. Rows of dst
// have no gaps. group elements share a scale.
type rowDequantizer func(dst []float32, t, scale *flashkit.Tensor, batch, g, row, n, group int)

// dequantizeRows is a rowDequantizer in plain Go.
func dequantizeRows(dst []float32, t, scale *flashkit.Tensor, batch, g, row, n, group int) {
	dim := t.Shape()[3]
	for i := range n {
		codes := t.Int8s()[t.Offset(batch, g, row+i):][:dim]
		to, at := dst[i*dim:][:dim], scale.Offset(batch, g, row+i)
		for c := 0; c < dim; c += group {
			s := scaleAt(scale, at)
			for e := c; e < min(c+group, dim); e++ {
				to[e] = float32(codes[e]) * s
			}
			at++
		}
	}
}

// scaleAt returns the scale with index at in the memory of t.
func scaleAt(t *flashkit.Tensor, at int) float32 {
	if t.DType() == flashkit.Float16 {
		return half.FromF16(t.Uint16s()[at])
	}
	return t.Float32s()[at]
}
