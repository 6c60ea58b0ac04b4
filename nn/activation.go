package nn

import "github.com/flashkit-go/flashkit/internal/matmul"

// Forward applies the activation to every element of x, [rows, features], and returns the result.
// Linear.Activation applies an activation to the result of a Linear layer in less time.
func (a Activation) Forward(s *Step, x Tensor) Tensor {
	if !s.ok(a.check()) || !s.accepts("Activation", "x", &x, 0, nil) {
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, x.Features)
	for i := 0; i < x.Count(); i += x.denseRows() {
		s.ok(s.engine.products.Apply(s.ctx, y.span(i, x.denseRows()), x.span(i, x.denseRows()), matmul.Activation(a)))
	}
	s.Push(activations[a], x)
	return y
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result.
func (a Activation) Backward(s *Step, dy Tensor) Tensor {
	if !s.ok(a.check()) || !s.accepts("Activation", "dy", &dy, 0, nil) {
		return Tensor{}
	}
	return activationGrad(s, a, s.Pop(activations[a]), dy)
}

func (a Activation) check() error {
	if a > SiLU {
		return problem("Activation", uint8(a), "must be None, ReLU, GELU, GELUTanh or SiLU")
	}
	return nil
}

// activations are the owners of the records that an Activation pushes for Backward. The owner of
// another layer's records is the layer's address, but an Activation is a number and has no address.
var activations = [...]any{None: None, ReLU: ReLU, GELU: GELU, GELUTanh: GELUTanh, SiLU: SiLU}

// activationGrad returns dy times the derivative of the activation at x.
func activationGrad(s *Step, a Activation, x, dy Tensor) Tensor {
	if !s.accepts("Activation", "dy", &dy, x.Features, &x.Rows) {
		return Tensor{}
	}
	dx := s.NewTensor(x.Rows, x.Features)
	n := min(x.denseRows(), dy.denseRows())
	for i := 0; i < x.Count(); i += n {
		s.ok(s.engine.products.ApplyGrad(s.ctx, dx.span(i, n), x.span(i, n), dy.span(i, n), matmul.Activation(a)))
	}
	return dx
}

// denseRows returns the number of rows that one call can handle as contiguous memory. The result is
// all rows if x has no gaps between rows, else 1.
func (x *Tensor) denseRows() int {
	if x.isDense() {
		return max(1, x.Count())
	}
	return 1
}

// span returns the memory of rows [i, i+n), which have no gaps between them.
func (x *Tensor) span(i, n int) []float32 {
	return x.Data[i*x.stride():][: n*x.Features : n*x.Features]
}
