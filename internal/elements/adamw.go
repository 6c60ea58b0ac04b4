package elements

import "math"

// AdamW has the factors of a step of the AdamW optimizer. Let g be the gradient of a parameter x, m
// the mean of its gradients, and v the mean of their squares. The step sets m = Beta1 m + Beta1Rest
// g and v = Beta2 v + Beta2Rest g². Then it sets x = Decay x - Rate m / (sqrt(v) Root + Eps).
type AdamW struct{ Beta1, Beta1Rest, Beta2, Beta2Rest, Decay, Rate, Root, Eps float32 }

// Update applies the step to each element of x, with m in mean and v in square. These slices have
// the length of grad.
func (a *AdamW) Update(x, mean, square, grad []float32) {
	if n := len(grad); n > 0 {
		chosen.update(a, x[:n], mean[:n], square[:n], grad)
	}
}

func (u *isa) update(a *AdamW, x, mean, square, grad []float32) {
	if u != nil {
		u.adamW(&x[0], &mean[0], &square[0], &grad[0], &a.Beta1, len(grad))
		return
	}
	for i, g := range grad {
		m, v := a.Beta1*mean[i]+a.Beta1Rest*g, a.Beta2*square[i]+a.Beta2Rest*g*g
		mean[i], square[i] = m, v
		x[i] = x[i]*a.Decay - a.Rate*m/(float32(math.Sqrt(float64(v)))*a.Root+a.Eps)
	}
}
