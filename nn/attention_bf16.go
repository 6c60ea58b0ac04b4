package nn

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/elements"
)

// attend runs flash attention for the Problem and for s.args, which problemOf has set. With
// Precision BF16, it rounds q, k and v to bf16, and y is widened from bf16.
func (m *MultiHeadAttention) attend(s *Step, p flashkit.Problem, q, k, v, y *Tensor) {
	if m.Precision == Float32 {
		s.ok(s.engine.attention.Forward(s.ctx, p, &s.args))
		return
	}
	start, g := s.Mark(), m.kvHeads()
	a, out := &s.args, s.halves(y)
	p.DType = flashkit.BFloat16
	a.Q, a.K, a.V, a.O = s.narrow(q, m.Heads), s.narrow(k, g), s.narrow(v, g), halfHeads(out, y, m.Heads)
	if !s.ok(s.engine.attention.Forward(s.ctx, p, a)) {
		return
	}
	w := s.startRows(y.Count(), func(w *rowWork, _, from, to int) {
		elements.FromBF16(w.y.Data[from*w.y.Features:to*w.y.Features], w.half[from*w.y.Features:])
	})
	w.y, w.half = *y, out
	s.runRows(y.Features)
	s.Keep(start, Tensor{})
}

// narrow returns x rounded to bf16, with n heads, in attention's layout and in the Step's memory.
func (s *Step) narrow(x *Tensor, n int) flashkit.Tensor {
	w := s.startRows(x.Count(), func(w *rowWork, _, from, to int) {
		for i := from; i < to; i++ {
			elements.ToBF16(w.half[i*w.x.Features:], w.x.Row(i))
		}
	})
	w.x, w.half = *x, s.halves(x)
	s.runRows(x.Features)
	return halfHeads(w.half, x, n)
}

// halves returns memory of the Step for the elements of x in 16 bits.
func (s *Step) halves(x *Tensor) []uint16 {
	n := x.Count() * x.Features
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(s.take((n+1)/2)))), n)
}

// halfHeads returns bf16 elements with the rows and features of x and no gaps, in attention's
// layout with n heads.
func halfHeads(data []uint16, x *Tensor, n int) flashkit.Tensor {
	dense := Tensor{Data: x.Data, Features: x.Features, Rows: x.Rows}
	t := dense.heads(n)
	shape, step := t.Shape(), t.Strides()
	return flashkit.BF16(data, shape[0], shape[1], shape[2], shape[3]).WithStrides(step[0], step[1], step[2])
}

// checkPrecision returns an error unless the layer's Precision allows the pass.
func (m *MultiHeadAttention) checkPrecision(s *Step) error {
	switch {
	case m.Precision == Float32:
		return nil
	case m.Precision != BF16:
		return problem("MultiHeadAttention.Precision", uint8(m.Precision), "must be Float32 or BF16")
	case !m.UseFlashAttention:
		return problem("MultiHeadAttention.UseFlashAttention", false, "must be true with Precision BF16")
	case s.train:
		return trainingError("MultiHeadAttention: Precision BF16")
	}
	return nil
}
