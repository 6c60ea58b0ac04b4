package nn

import "math"

// A LayerNorm makes each row of mean 0 and variance 1, and then scales and shifts its
// features: (x - mean) / sqrt(variance + Eps) * Weight + Bias. The variance is the biased
// one, over n.
type LayerNorm struct {
	Weight *Param // [features], at first 1
	Bias   *Param // [features], at first 0
	Eps    float32
}

// NewLayerNorm returns a norm of so many features, with Eps 1e-5, whose parameters are
// called weight and bias.
func NewLayerNorm(i *Init, features int) *LayerNorm {
	return &LayerNorm{i.Constant("weight", 1, features), i.Constant("bias", 0, features), 1e-5}
}

// Params returns weight and bias.
func (l *LayerNorm) Params() []*Param { return []*Param{l.Weight, l.Bias} }

// Forward returns the norm of x, [rows, features].
func (l *LayerNorm) Forward(s *Step, x Tensor) Tensor {
	if !s.ok(l.check()) || !s.takes(l.Weight.Name, "x", &x, len(l.Weight.Data), nil) {
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, x.Features)
	for i := range x.Count() {
		row, to, bias := x.Row(i), y.Row(i), l.Bias.Data
		mean, scale := l.moments(row)
		for j, w := range l.Weight.Data {
			to[j] = (row[j]-mean)*scale*w + bias[j]
		}
	}
	s.Push(l, x)
	return y
}

// Backward returns the gradient of x, given that of the result. With n = (x - mean) scale and
// dn = dy Weight, it is scale (dn - mean(dn) - n mean(dn n)).
func (l *LayerNorm) Backward(s *Step, dy Tensor) Tensor {
	x := s.Pop(l)
	if !s.ok(l.check()) || !s.takes(l.Weight.Name, "dy", &dy, len(l.Weight.Data), &x.Rows) {
		return Tensor{}
	}
	dx := s.NewTensor(x.Rows, x.Features)
	part := s.take(2 * x.Features) // of the gradients of a block of rows, so that long sums lose few digits
	dWeight, dBias := part[:x.Features], part[x.Features:]
	clear(part)
	for i := range x.Count() {
		row, d, to := x.Row(i), dy.Row(i), dx.Row(i)
		mean, scale := l.moments(row)
		var sum, dot float64
		for j, w := range l.Weight.Data {
			n := (row[j] - mean) * scale
			sum += float64(d[j] * w)
			dot += float64(d[j]*w) * float64(n)
			dWeight[j] += d[j] * n
			dBias[j] += d[j]
		}
		a, b := float32(sum/float64(len(row))), float32(dot/float64(len(row)))
		for j, w := range l.Weight.Data {
			to[j] = scale * (d[j]*w - a - (row[j]-mean)*scale*b)
		}
		if i%64 == 63 || i == x.Count()-1 {
			add(l.Weight.grad(), dWeight)
			add(l.Bias.grad(), dBias)
			clear(part)
		}
	}
	return dx
}

// moments returns the mean of a row and 1/sqrt(variance + Eps).
func (l *LayerNorm) moments(row []float32) (mean, scale float32) {
	var sum, squares float64
	for _, v := range row {
		sum += float64(v)
	}
	m := sum / float64(len(row))
	for _, v := range row {
		d := float64(v) - m
		squares += d * d
	}
	return float32(m), float32(1 / math.Sqrt(squares/float64(len(row))+float64(l.Eps)))
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

// add adds x to sum.
func add(sum, x []float32) {
	for i, v := range x {
		sum[i] += v
	}
}

// inverseRoot returns 1/sqrt(n), 0 for what is no number of features.
func inverseRoot(n int) float64 {
	if n < 1 {
		return 0
	}
	return 1 / math.Sqrt(float64(n))
}
