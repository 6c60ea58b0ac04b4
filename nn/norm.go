package nn

import (
	"math"

	"github.com/flashkit-go/flashkit/internal/elements"
)

// A LayerNorm normalizes each row: (x - mean) / sqrt(variance + Eps) * Weight + Bias. The variance
// is biased (divided by n).
type LayerNorm struct {
	Weight *Param  // [features], initially 1
	Bias   *Param  // [features], initially 0
	Eps    float32 // added to the variance; at least 0
}

// NewLayerNorm returns a norm for rows of the given number of features, with Eps 1e-5 and the
// parameters "weight" and "bias".
func NewLayerNorm(i *Init, features int) *LayerNorm {
	return &LayerNorm{i.Constant("weight", 1, features), i.Constant("bias", 0, features), 1e-5}
}

// Params returns weight and bias.
func (l *LayerNorm) Params() []*Param { return []*Param{l.Weight, l.Bias} }

// Forward returns the normalized rows of x, [rows, features].
func (l *LayerNorm) Forward(s *Step, x Tensor) Tensor {
	if !s.ok(l.check()) || !s.accepts(l.Weight.Name, "x", &x, len(l.Weight.Data), nil) {
		return Tensor{}
	}
	y, moments := s.NewTensor(x.Rows, x.Features), s.NewTensor(x.Rows, 2)
	w := s.startRows(x.Count(), normForward)
	w.norm, w.x, w.y, w.z = l, x, y, moments
	s.runRows(x.Features)
	s.Push(l, x)
	s.Push(l, moments)
	return y
}

// Apply normalizes the rows of x in place. It is for inference and fails in training.
func (l *LayerNorm) Apply(s *Step, x Tensor) {
	if s.infers("LayerNorm.Apply") && s.ok(l.check()) && s.accepts(l.Weight.Name, "x", &x, len(l.Weight.Data), nil) {
		w := s.startRows(x.Count(), normForward)
		w.norm, w.x, w.y, w.z = l, x, x, s.NewTensor(x.Rows, 2)
		s.runRows(x.Features)
	}
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result.
func (l *LayerNorm) Backward(s *Step, dy Tensor) Tensor {
	moments := s.Pop(l)
	x := s.Pop(l)
	if !s.ok(l.check()) || !s.accepts(l.Weight.Name, "dy", &dy, len(l.Weight.Data), &x.Rows) {
		return Tensor{}
	}
	dx := s.NewTensor(x.Rows, x.Features)
	w := s.startRows(x.Count(), normBackward)
	w.norm, w.x, w.y, w.z, w.last = l, x, dy, moments, dx
	w.part = s.take(w.blocks() * 2 * x.Features)
	s.runRows(x.Features)
	w.addBlocks(l.Weight.grad(), 0)
	w.addBlocks(l.Bias.grad(), x.Features)
	return dx
}

// normForward computes rows of y. For each row of x it also stores the mean and 1/sqrt(variance +
// Eps), in z.
func normForward(w *rowWork, _, from, to int) {
	l, n := w.norm, min(w.x.denseRows(), to-from)
	for i := from; i < to; i += n {
		elements.Norm(w.y.span(i, n), w.x.span(i, n), l.Weight.Data, l.Bias.Data, w.z.span(i, n), l.Eps)
	}
}

// normBackward computes rows of dx. For the gradients of weight and bias, it also computes sums
// over the rows of the block.
func normBackward(w *rowWork, block, from, to int) {
	f, n := w.x.Features, min(w.x.denseRows(), w.y.denseRows(), to-from)
	dWeight, dBias := w.part[2*f*block:][:f], w.part[2*f*block+f:][:f]
	clear(dWeight)
	clear(dBias)
	for i := from; i < to; i += n {
		elements.NormGradients(w.last.span(i, n), w.x.span(i, n), w.y.span(i, n), w.norm.Weight.Data, w.z.span(i, n), dWeight, dBias)
	}
}

func (l *LayerNorm) check() error {
	if l.Weight == nil || l.Bias == nil {
		return problem("LayerNorm.Weight", "none", "the parameter is missing: the layer was not made by its New function")
	}
	if !(l.Eps >= 0) {
		return problem(l.Weight.Name+": Eps", l.Eps, "must be at least 0")
	}
	if err := l.Weight.check("LayerNorm.Weight", 0, len(l.Weight.Data)); err != nil {
		return err
	}
	return l.Bias.check("LayerNorm.Bias", 0, len(l.Weight.Data))
}

func add(sum, x []float32) { elements.Add(sum, x, 0, 1) }

// inverseRoot returns 1/sqrt(n), or 0 if n is below 1.
func inverseRoot(n int) float64 {
	if n < 1 {
		return 0
	}
	return 1 / math.Sqrt(float64(n))
}
