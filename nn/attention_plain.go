package nn

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// Plain attention computes and stores all attention weights P, [batch, heads, QLen, KVLen], and
// multiplies P by V. It has the same arguments as flash attention, and the same results up to
// rounding.

// plainForward computes O of s.args. It sets weights to the attention weights before dropout.
func (s *Step) plainForward(p flashkit.Problem, weights []float32) {
	if !s.ok(s.call.Set(p, flashkit.PassForward, &s.args)) {
		return
	}
	clear(weights)
	dropped := s.takeIf(p.Score.Dropout > 0, p.QLen*p.KVLen)
	for b := range p.Batch {
		seq := s.call.Seq(b)
		for h := range p.Heads {
			g, each := h/(p.Heads/p.KVHeads), p.Heads/p.KVHeads
			if h%each == 0 {
				s.pack(0, matrixOf(&s.args.K, seq.KVBatch, g, seq.K0, seq.M).T())
				s.pack(1, matrixOf(&s.args.V, seq.KVBatch, g, seq.K0, seq.M))
			}
			w := headOf(&p, weights, b, h, &seq)
			s.mm = matmul.Args{C: w, A: matrixOf(&s.args.Q, seq.QBatch, h, seq.Q0, seq.N), B: &s.packed[0]}
			s.multiply()
			work := s.startRows(seq.N, softmaxRows)
			work.weights, work.seq, work.scale = w, seq, p.SoftmaxScale()
			s.runRows(4 * seq.M)
			if dropped != nil {
				w = drop(&p, dropped, w, s.args.Seed, b, h)
			}
			o := matrixOf(&s.args.O, seq.QBatch, h, seq.Q0, seq.N)
			s.mm = matmul.Args{C: o, A: w, B: &s.packed[1]}
			s.multiply()
			clearRows(&s.args.O, &p, seq.QBatch, h, seq.N, p.QLen)
		}
	}
}

// plainBackward computes DQ, DK and DV of s.args. weights are plainForward's attention weights.
func (s *Step) plainBackward(p flashkit.Problem, weights []float32) {
	a := &s.args
	lse := s.take(a.Q.Shape()[0] * p.Heads * a.Q.Shape()[2]) // s.call.Set requires an LSE, but nothing reads it
	a.LSE = flashkit.F32(lse, a.Q.Shape()[0], p.Heads, a.Q.Shape()[2], 1)
	if !s.ok(s.call.Set(p, flashkit.PassBackward, a)) {
		return
	}
	slopes := s.take(p.QLen * p.KVLen) // the gradients of one head's weights, then of its scores
	dropped := s.takeIf(p.Score.Dropout > 0, p.QLen*p.KVLen)
	for b := range p.Batch {
		seq := s.call.Seq(b)
		for h := range p.Heads {
			g, each := h/(p.Heads/p.KVHeads), p.Heads/p.KVHeads
			if h%each == 0 {
				s.pack(0, matrixOf(&a.V, seq.KVBatch, g, seq.K0, seq.M).T())
				s.pack(1, matrixOf(&a.K, seq.KVBatch, g, seq.K0, seq.M))
			}
			w := headOf(&p, weights, b, h, &seq)
			d := matmul.Matrix{Data: slopes, Rows: seq.N, Cols: seq.M, RowStride: p.KVLen, ColStride: 1}
			dO := matrixOf(&a.DO, seq.QBatch, h, seq.Q0, seq.N)
			s.mm = matmul.Args{C: d, A: dO, B: &s.packed[0]} // the gradient of the weights after dropout
			s.multiply()
			used := w
			if dropped != nil {
				used = drop(&p, dropped, w, a.Seed, b, h)
			}
			s.pack(2, dO)
			s.mm = matmul.Args{C: matrixOf(&a.DV, seq.KVBatch, g, seq.K0, seq.M), A: used.T(), B: &s.packed[2], Accumulate: h%each > 0}
			s.multiply()
			if dropped != nil {
				drop(&p, slopes, d, a.Seed, b, h)
			}
			work := s.startRows(seq.N, softmaxGrad)
			work.weights, work.slopes, work.scale = w, d, p.SoftmaxScale()
			s.runRows(seq.M)
			s.mm = matmul.Args{C: matrixOf(&a.DQ, seq.QBatch, h, seq.Q0, seq.N), A: d, B: &s.packed[1]}
			s.multiply()
			s.pack(2, matrixOf(&a.Q, seq.QBatch, h, seq.Q0, seq.N))
			s.mm = matmul.Args{C: matrixOf(&a.DK, seq.KVBatch, g, seq.K0, seq.M), A: d.T(), B: &s.packed[2], Accumulate: h%each > 0}
			s.multiply()
			clearRows(&a.DQ, &p, seq.QBatch, h, seq.N, p.QLen)
			clearRows(&a.DK, &p, seq.KVBatch, g, seq.M, p.KVLen)
			clearRows(&a.DV, &p, seq.KVBatch, g, seq.M, p.KVLen)
		}
	}
}

func (s *Step) takeIf(wanted bool, n int) []float32 {
	if !wanted {
		return nil
	}
	return s.take(n)
}

// softmaxRows replaces each row of unscaled scores in [from, to) by the softmax of the scaled
// row. Masked keys get weight 0.
func softmaxRows(w *rowWork, _, from, to int) {
	for i := from; i < to; i++ {
		row := w.weights.Data[i*w.weights.RowStride:][:w.seq.M]
		lo, hi := w.seq.Keys(i)
		clear(row[:lo])
		clear(row[hi:])
		softmax(row[lo:hi], w.scale)
	}
}

func softmax(x []float32, scale float64) {
	m := math.Inf(-1)
	for _, v := range x {
		m = max(m, float64(v)*scale)
	}
	sum := 0.0
	for j, v := range x {
		e := math.Exp(float64(v)*scale - m)
		sum += e
		x[j] = float32(e)
	}
	f := float32(1 / sum)
	for j := range x {
		x[j] *= f
	}
}

// softmaxGrad replaces rows of the gradient d of the attention weights by the gradient of the
// unscaled scores. For a row of weights p this gradient is scale * p * (d - sum(p * d)).
func softmaxGrad(w *rowWork, _, from, to int) {
	scale := float32(w.scale)
	for i := from; i < to; i++ {
		d, weights := w.slopes.Data[i*w.slopes.RowStride:][:w.slopes.Cols], w.weights.Data[i*w.weights.RowStride:][:w.slopes.Cols]
		dot := 0.0
		for j, v := range weights {
			dot += float64(v) * float64(d[j])
		}
		for j, v := range weights {
			d[j] = scale * v * (d[j] - float32(dot))
		}
	}
}

// drop applies flash attention's dropout mask of one head to x and writes the result to y, which
// may alias x. An element becomes 0, or is multiplied by 1/(1-Dropout).
func drop(p *flashkit.Problem, y []float32, x matmul.Matrix, seed uint64, b, h int) matmul.Matrix {
	below, keep, key := philox.Below(p.Score.Dropout), philox.Keep(p.Score.Dropout), philox.Key(seed)
	var words [4]uint32
	for i := range x.Rows {
		from, to := x.Data[i*x.RowStride:][:x.Cols], y[i*x.RowStride:][:x.Cols]
		for j, v := range from {
			if j%8 == 0 {
				words = philox.Words([4]uint32{uint32(j / 8), uint32(i), uint32(h), uint32(b)}, key)
			}
			to[j] = v * keep
			if philox.Dropped(words, j, below) {
				to[j] = 0
			}
		}
	}
	x.Data = y
	return x
}

// headOf returns the attention weights of head h of sequence b.
func headOf(p *flashkit.Problem, weights []float32, b, h int, seq *flashkit.Seq) matmul.Matrix {
	return matmul.Matrix{Data: weights[(b*p.Heads+h)*p.QLen*p.KVLen:], Rows: seq.N, Cols: seq.M, RowStride: p.KVLen, ColStride: 1}
}

// matrixOf returns rows [r, r+n) of head h in batch entry b of t.
func matrixOf(t *flashkit.Tensor, b, h, r, n int) matmul.Matrix {
	m := matmul.Matrix{Rows: n, Cols: t.Shape()[3], RowStride: t.Strides()[2], ColStride: 1}
	if n > 0 {
		m.Data = t.Float32s()[t.Offset(b, h, r):]
	}
	return m
}

// clearRows sets rows [from, to) of a head, which are padding, to 0. Packed sequences have no
// padding.
func clearRows(t *flashkit.Tensor, p *flashkit.Problem, b, h, from, to int) {
	if t.Shape()[0] != p.Batch || t.Shape()[2] != to {
		return
	}
	for r := from; r < to; r++ {
		clear(t.Float32s()[t.Offset(b, h, r):][:t.Shape()[3]])
	}
}
