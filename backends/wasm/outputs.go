package wasm

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// clearOutputs writes the elements that no tile writes: padding past the ends of sequences, gradients
// of rows without keys, and the initial zeros of dBias.
func (j *job) clearOutputs() {
	f, c := j.args, j.c
	if c.QLen == 0 && c.KVLen == 0 {
		return // no output has elements; a loop over the sequences could be long
	}
	if j.bias.wanted {
		for b := range f.DBias.Shape()[0] {
			j.fill(&f.DBias, b, 0, f.DBias.Shape()[2], 0)
		}
	}
	if !c.Ragged && (c.Pass == flashkit.PassForward || c.KVLen > 0) {
		return
	}
	for b := range c.Batch {
		s := c.Seq(b)
		switch {
		case c.Pass == flashkit.PassForward:
			j.fillPadding(&f.O, b, s.N, c.QLen, c.Traits.PackedQ, 0)
			j.fillPadding(&f.LSE, b, s.N, c.QLen, c.Traits.PackedQ, math.Inf(-1))
			continue
		case s.M == 0:
			j.fill(&f.DQ, s.QBatch, s.Q0, s.Q0+s.N, 0)
		}
		j.fillPadding(&f.DQ, b, s.N, c.QLen, c.Traits.PackedQ, 0)
		j.fillPadding(&f.DK, b, s.M, c.KVLen, c.Traits.PackedKV, 0)
		j.fillPadding(&f.DV, b, s.M, c.KVLen, c.Traits.PackedKV, 0)
	}
}

func (j *job) fillPadding(t *flashkit.Tensor, b, from, to int, packed bool, v float64) {
	if !packed && !t.IsZero() {
		j.fill(t, b, from, to, v)
	}
}

// fill sets rows [r0, r1) of every head of batch b of t to v, which must be 0 in 16-bit tensors. It
// does nothing if rows have no elements, because such rows have no memory to index.
func (j *job) fill(t *flashkit.Tensor, b, r0, r1 int, v float64) {
	dim := t.Shape()[3]
	if r0 >= r1 || dim == 0 {
		return
	}
	for h := range t.Shape()[1] {
		if j.stopped() {
			return
		}
		for r := r0; r < r1; r++ {
			at := t.Offset(b, h, r)
			if t.DType() != flashkit.Float32 {
				clear(t.Uint16s()[at:][:dim])
				continue
			}
			for c := range t.Float32s()[at:][:dim] {
				t.Float32s()[at+c] = float32(v)
			}
		}
	}
}
