package nn

import "github.com/flashkit-go/flashkit/internal/elements"

// An RMSNorm divides each row by its root mean square: x / sqrt(mean(x²) + Eps) * (Weight + Offset).
// If a row has n times as many features as Weight, each of its n groups of features is normalized
// alone, as the heads of queries and keys in some models.
//
// Source: Zhang, Sennrich, Root mean square layer normalization, 2019.
type RMSNorm struct {
	Weight *Param  // [features], initially 1
	Eps    float32 // added to the mean square; at least 0
	Offset float32 // added to Weight, initially 0; 1 for the files of Gemma
}

// NewRMSNorm returns a norm for groups of the given number of features, with Eps 1e-6 and the
// parameter "weight".
func NewRMSNorm(i *Init, features int) *RMSNorm {
	return &RMSNorm{Weight: i.Constant("weight", 1, features), Eps: 1e-6}
}

// Params returns the weight.
func (l *RMSNorm) Params() []*Param { return []*Param{l.Weight} }

// Forward returns the normalized rows of x, [rows, n * features].
func (l *RMSNorm) Forward(s *Step, x Tensor) Tensor {
	if !s.ok(l.check(&x, "x")) || !s.accepts(l.Weight.Name, "x", &x, 0, nil) {
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, x.Features)
	l.run(s, y, x)
	s.Push(l, x)
	return y
}

// Apply normalizes the rows of x in place. It is for inference and fails in training.
func (l *RMSNorm) Apply(s *Step, x Tensor) {
	if s.infers("RMSNorm.Apply") && s.ok(l.check(&x, "x")) && s.accepts(l.Weight.Name, "x", &x, 0, nil) {
		l.run(s, x, x)
	}
}

func (l *RMSNorm) run(s *Step, y, x Tensor) {
	w := s.startRows(x.Count(), rmsForward)
	w.rms, w.x, w.y = l, x, y
	s.runRows(x.Features)
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result.
func (l *RMSNorm) Backward(s *Step, dy Tensor) Tensor {
	x := s.Pop(l)
	if !s.ok(l.check(&dy, "dy")) || !s.accepts(l.Weight.Name, "dy", &dy, x.Features, &x.Rows) {
		return Tensor{}
	}
	dx := s.NewTensor(x.Rows, x.Features)
	w := s.startRows(x.Count(), rmsBackward)
	w.rms, w.x, w.y, w.last = l, x, dy, dx
	w.part = s.take(w.blocks() * len(l.Weight.Data))
	s.runRows(x.Features)
	w.addBlocks(l.Weight.grad(), 0)
	return dx
}

func rmsForward(w *rowWork, _, from, to int) {
	l := w.rms
	for i := from; i < to; i++ {
		elements.RMSNorm(w.y.Row(i), w.x.Row(i), l.Weight.Data, l.Offset, l.Eps)
	}
}

func rmsBackward(w *rowWork, block, from, to int) {
	l := w.rms
	dWeight := w.part[block*len(l.Weight.Data):][:len(l.Weight.Data)]
	clear(dWeight)
	for i := from; i < to; i++ {
		elements.RMSNormGradients(w.last.Row(i), w.x.Row(i), w.y.Row(i), l.Weight.Data, dWeight, l.Offset, l.Eps)
	}
}

// check returns an error if the layer is invalid, or x is not groups of its features.
func (l *RMSNorm) check(x *Tensor, what string) error {
	if l.Weight == nil {
		return problem("RMSNorm.Weight", "none", "the parameter is missing: the layer was not made by its New function")
	}
	n := len(l.Weight.Data)
	switch {
	case !(l.Eps >= 0):
		return problem(l.Weight.Name+": Eps", l.Eps, "must be at least 0")
	case l.Offset-l.Offset != 0:
		return problem(l.Weight.Name+": Offset", l.Offset, "must be finite")
	case n > 0 && x.Features%n != 0:
		return problem(l.Weight.Name+": "+what+".Features", x.Features, "must be a multiple of %d", n)
	}
	return l.Weight.check("RMSNorm.Weight", 0, n)
}
