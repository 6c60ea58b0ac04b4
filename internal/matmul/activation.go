package matmul

import "math"

const tanhCubic = 0.044715

var tanhLinear = math.Sqrt(2 / math.Pi)

// of returns the activation of x, in portable Go.
func (act Activation) of(x float32) float32 {
	v := float64(x)
	switch {
	case act == ReLU && x < 0:
		return 0
	case act == GELU && x < -40, act == GELUTanh && x < -40:
		return 0 // x*0 would be NaN for -Inf
	case act == GELU:
		return float32(v * normal(v))
	case act == SiLU && x < -120:
		return 0
	case act == SiLU:
		return float32(v * logistic(v))
	case act == GELUTanh && x < 40:
		return float32(v * logistic(tanhArgument(v)))
	}
	return x
}

// slope returns the derivative of the activation at x.
func (act Activation) slope(x float32) float32 {
	v := float64(x)
	switch {
	case x != x:
		return x
	case act == None, act != ReLU && x > 120, act != ReLU && act != SiLU && x > 40:
		return 1
	case act == ReLU && x > 0:
		return 1
	case act == ReLU, x < -120, act != SiLU && x < -40:
		return 0
	case act == SiLU:
		s := logistic(v)
		return float32(s + v*s*(1-s))
	case act == GELU:
		return float32(normal(v) + v*math.Exp(-v*v/2)/math.Sqrt(2*math.Pi))
	}
	s := logistic(tanhArgument(v))
	return float32(s + v*s*(1-s)*2*tanhLinear*(1+3*tanhCubic*v*v))
}

func normal(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// tanhArgument returns u such that GELUTanh is x times logistic(u).
func tanhArgument(x float64) float64 { return 2 * tanhLinear * (x + tanhCubic*x*x*x) }
