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
	y, moments := s.NewTensor(x.Rows, x.Features), s.NewTensor(x.Rows, 2)
	w := s.work(x.Count(), normForward)
	w.norm, w.x, w.y, w.z = l, x, y, moments
	s.do(x.Features)
	s.Push(l, x)
	s.Push(l, moments)
	return y
}

// Backward returns the gradient of x, given that of the result.
func (l *LayerNorm) Backward(s *Step, dy Tensor) Tensor {
	moments := s.Pop(l)
	x := s.Pop(l)
	if !s.ok(l.check()) || !s.takes(l.Weight.Name, "dy", &dy, len(l.Weight.Data), &x.Rows) {
		return Tensor{}
	}
	dx := s.NewTensor(x.Rows, x.Features)
	w := s.work(x.Count(), normBackward)
	w.norm, w.x, w.y, w.z, w.last = l, x, dy, moments, dx
	w.part = s.take(w.blocks() * 2 * x.Features)
	s.do(x.Features)
	w.addBlocks(l.Weight.grad(), 0)
	w.addBlocks(l.Bias.grad(), x.Features)
	return dx
}

// normForward computes rows of y from those of x, and their mean and 1/sqrt(variance + Eps).
func normForward(w *rowWork, _, from, to int) {
	f := w.x.Features
	weight, bias := w.norm.Weight.Data[:f], w.norm.Bias.Data[:f]
	for i := from; i < to; i++ {
		x, y, moments := w.x.Row(i)[:f], w.y.Row(i)[:f], w.z.Row(i)
		mean, scale := w.norm.moments(x)
		moments[0], moments[1] = mean, scale
		for j, v := range x[:f] {
			y[j] = (v-mean)*scale*weight[j] + bias[j]
		}
	}
}

// normBackward computes rows of dx, and the block's part of the gradients of weight and bias.
// With n = (x - mean) scale and dn = dy Weight, dx is scale (dn - mean(dn) - n mean(dn n)).
func normBackward(w *rowWork, block, from, to int) {
	f := w.x.Features
	weight, dWeight, dBias := w.norm.Weight.Data[:f], w.part[2*f*block:][:f], w.part[2*f*block+f:][:f]
	clear(dWeight)
	clear(dBias)
	for i := from; i < to; i++ {
		x, dy, dx := w.x.Row(i)[:f], w.y.Row(i)[:f], w.last.Row(i)[:f] // of one length, so that the loops check none
		mean, scale := w.z.Row(i)[0], w.z.Row(i)[1]
		var sum, dot float64
		for j, d := range dy[:f] {
			n, dn := (x[j]-mean)*scale, d*weight[j]
			sum += float64(dn)
			dot += float64(dn) * float64(n)
			dWeight[j] += d * n
			dBias[j] += d
		}
		a, b := float32(sum/float64(f)), float32(dot/float64(f))*scale
		for j, d := range dy[:f] {
			dx[j] = scale * (d*weight[j] - a - (x[j]-mean)*b)
		}
	}
}

// moments returns the mean of a row and 1/sqrt(variance + Eps).
func (l *LayerNorm) moments(row []float32) (mean, scale float32) {
	n := float64(len(row))
	m := sumOf(row, 0, false) / n
	return float32(m), float32(1 / math.Sqrt(sumOf(row, m, true)/n+float64(l.Eps)))
}

// sumOf returns the sum of the differences to m, or of their squares. Four sums go side by
// side, so that none waits for the other.
func sumOf(x []float32, m float64, squares bool) float64 {
	var sum [4]float64
	for len(x) >= 4 {
		a, b, c, d := float64(x[0])-m, float64(x[1])-m, float64(x[2])-m, float64(x[3])-m
		if squares {
			a, b, c, d = a*a, b*b, c*c, d*d
		}
		sum[0], sum[1], sum[2], sum[3] = sum[0]+a, sum[1]+b, sum[2]+c, sum[3]+d
		x = x[4:]
	}
	for _, v := range x {
		d := float64(v) - m
		if squares {
			d *= d
		}
		sum[0] += d
	}
	return sum[0] + sum[1] + (sum[2] + sum[3])
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
