package elements

import "math"

// AdamW is a step of the AdamW optimizer for a gradient g. It sets Mean' = Beta1 Mean + Beta1Rest g
// and Square' = Beta2 Square + Beta2Rest g². Then x' = Decay x - Rate Mean' / (sqrt(Square') Root +
// Eps).
type AdamW struct{ Beta1, Beta1Rest, Beta2, Beta2Rest, Decay, Rate, Root, Eps float32 }

// Update applies the step to x, mean and square. All slices are as long as grad.
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
