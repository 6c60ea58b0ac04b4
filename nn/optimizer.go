package nn

import (
	"math"

	"github.com/flashkit-go/flashkit/internal/elements"
)

// An AdamW is the optimizer Adam with decoupled weight decay, as in PyTorch: the decay is not part
// of the gradient. Update is not safe for concurrent use. No pass may use the parameters during
// Update.
//
// Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019.
type AdamW struct {
	LR           float64 // learning rate; may change between updates
	Beta1, Beta2 float64 // decay of the running means of gradients and squared gradients
	Eps          float64 // added to the square root of the mean of squared gradients
	WeightDecay  float64 // an update multiplies weights by 1 - LR*WeightDecay
	Steps        int     // number of updates so far

	params       []*Param
	mean, square []*Param
	step         elements.AdamW // the update in progress; a field, so that Update does not allocate
}

// NewAdamW returns an optimizer of params with the learning rate lr and PyTorch's other defaults:
// betas 0.9 and 0.999, Eps 1e-8, WeightDecay 0.01. Its state takes 8 bytes per element of a
// parameter.
func NewAdamW(params []*Param, lr float64) *AdamW {
	return &AdamW{LR: lr, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01,
		params: params, mean: shadows(params, "adamw.mean."), square: shadows(params, "adamw.square.")}
}

// State returns the running means of gradients and of squared gradients. A program saves these
// means, and Steps, to resume training later. The name of a mean is the parameter's name with a
// prefix. The means are not copies: to resume training, pass them to Load.
func (o *AdamW) State() []*Param { return append(append([]*Param(nil), o.mean...), o.square...) }

// Update updates the parameters from their gradients, which stay unchanged. A nil gradient is 0.
func (o *AdamW) Update() {
	o.Steps++
	o.step = elements.AdamW{
		Beta1: float32(o.Beta1), Beta1Rest: float32(1 - o.Beta1), Beta2: float32(o.Beta2), Beta2Rest: float32(1 - o.Beta2),
		Decay: float32(1 - o.LR*o.WeightDecay), Rate: float32(o.LR / (1 - math.Pow(o.Beta1, float64(o.Steps)))),
		Root: float32(1 / math.Sqrt(1-math.Pow(o.Beta2, float64(o.Steps)))), Eps: float32(o.Eps),
	}
	for k, p := range o.params {
		o.step.Update(p.Data, o.mean[k].shadow(p), o.square[k].shadow(p), p.grad())
		p.Changed()
	}
}

// An SGD is stochastic gradient descent with momentum, as in PyTorch: weight decay is part of the
// gradient. Update is not safe for concurrent use. No pass may use the parameters during Update.
type SGD struct {
	LR          float64 // learning rate; may change between updates
	Momentum    float64 // decay of the running sum of gradients; 0 for no momentum
	WeightDecay float64 // the gradient of a weight w is increased by WeightDecay*w

	params, velocity []*Param
}

// NewSGD returns an optimizer of params with the learning rate lr, without momentum and weight
// decay. Its state takes 4 bytes per element of a parameter.
func NewSGD(params []*Param, lr float64) *SGD {
	return &SGD{LR: lr, params: params, velocity: shadows(params, "sgd.velocity.")}
}

// State returns the running sums of gradients. A program saves these sums to resume training later.
// The name of a sum is the parameter's name with a prefix. The sums are not copies: to resume
// training, pass them to Load.
func (o *SGD) State() []*Param { return append([]*Param(nil), o.velocity...) }

// Update updates the parameters from their gradients, which stay unchanged. A nil gradient is 0.
func (o *SGD) Update() {
	lr, momentum, decay := float32(o.LR), float32(o.Momentum), float32(o.WeightDecay)
	for k, p := range o.params {
		velocity := o.velocity[k].shadow(p)
		for i, g := range p.grad() {
			velocity[i] = momentum*velocity[i] + g + decay*p.Data[i]
			p.Data[i] -= lr * velocity[i]
		}
		p.Changed()
	}
}

// ClipGradients scales all gradients by one factor, so that their joint Euclidean norm does not
// exceed the limit most. It returns the norm before scaling. If that norm is below most, infinite
// or NaN, the gradients stay unchanged.
func ClipGradients(params []*Param, most float64) (norm float64) {
	squares := 0.0
	for _, p := range params {
		squares += squaresOf(p.Grad)
	}
	norm = math.Sqrt(squares)
	scale := float32(most / (norm + 1e-6))
	if !(scale < 1) || math.IsInf(norm, 0) {
		return norm
	}
	for _, p := range params {
		for i := range p.Grad {
			p.Grad[i] *= scale
		}
	}
	return norm
}

// squaresOf returns the sum of squares of x. Four partial sums let the processor overlap additions.
func squaresOf(x []float32) float64 {
	var sum [4]float64
	for ; len(x) >= 4; x = x[4:] {
		a, b, c, d := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		sum[0], sum[1], sum[2], sum[3] = sum[0]+a*a, sum[1]+b*b, sum[2]+c*c, sum[3]+d*d
	}
	for _, v := range x {
		sum[0] += float64(v) * float64(v)
	}
	return sum[0] + sum[1] + (sum[2] + sum[3])
}

// shadows returns an optimizer's initial state: for each parameter p in params, an array of zeros
// with the shape of p. The array is stored in a Param with the name prefix + p.Name.
func shadows(params []*Param, prefix string) []*Param {
	list := make([]*Param, len(params))
	for i, p := range params {
		list[i] = &Param{Name: prefix + p.Name, Shape: p.Shape, Data: make([]float32, len(p.Data))}
	}
	return list
}

// shadow returns the data of s, an optimizer's state for parameter p. If the length of p's data has
// changed, shadow first replaces the data of s by zeros of the new shape.
func (s *Param) shadow(p *Param) []float32 {
	if len(s.Data) != len(p.Data) {
		s.Shape, s.Data = p.Shape, make([]float32, len(p.Data))
	}
	return s.Data
}
