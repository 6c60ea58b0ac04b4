package nn

import (
	"fmt"
	"math"
)

// A CrossEntropy is the loss of a classification. It is the mean over rows of minus the natural
// logarithm of the target's probability under the softmax of the logits.
type CrossEntropy struct {
	// Ignore is the target of rows that do not count. PyTorch's default is -100.
	Ignore int32
}

// Forward returns the loss of logits, [rows, classes], with one target per row: a class, or Ignore.
// If no row counts the loss is 0, where PyTorch returns NaN.
func (l *CrossEntropy) Forward(s *Step, logits Tensor, targets []int32) float64 {
	if !s.accepts("CrossEntropy", "logits", &logits, 0, nil) {
		return 0
	}
	counted, err := l.count(&logits, targets)
	if !s.ok(err) {
		return 0
	}
	var grad Tensor
	if s.train { // a further pass over cached data, without a second exponential
		grad = s.NewTensor(logits.Rows, logits.Features)
	}
	w := s.startRows(logits.Count(), crossEntropyRows)
	w.x, w.y, w.targets, w.ignore, w.scale = logits, grad, targets, l.Ignore, 1/float64(counted)
	w.sums = append(w.sums[:0], make([]float64, w.blocks())...)
	s.runRows(16 * logits.Features) // exponentials
	sum := 0.0
	for _, x := range w.sums {
		sum += x
	}
	s.Push(l, grad)
	return sum / float64(max(counted, 1))
}

// crossEntropyRows sums the losses of a block, and computes their gradients in training.
func crossEntropyRows(w *rowWork, block, from, to int) {
	for i := from; i < to; i++ {
		var grad []float32
		if w.y.Data != nil {
			grad = w.y.Row(i)
		}
		if target := w.targets[i]; target != w.ignore {
			w.sums[block] += crossEntropy(w.x.Row(i), grad, int(target), w.scale)
		} else {
			clear(grad)
		}
	}
}

// Backward returns the gradient of the logits, [rows, classes], of the last Forward.
func (l *CrossEntropy) Backward(s *Step) Tensor { return s.Pop(l) }

// crossEntropy returns the loss of a row and, unless grad is nil, its gradient times scale.
func crossEntropy(x, grad []float32, target int, scale float64) float64 {
	m := float64(x[0])
	for _, v := range x {
		m = math.Max(m, float64(v)) // propagates NaN
	}
	sum := 0.0
	for j, v := range x {
		e := math.Exp(float64(v) - m)
		sum += e
		if grad != nil {
			grad[j] = float32(e)
		}
	}
	if grad != nil {
		f := float32(scale / sum)
		for j := range grad {
			grad[j] *= f
		}
		grad[target] -= float32(scale)
	}
	return m + math.Log(sum) - float64(x[target])
}

func (l *CrossEntropy) count(logits *Tensor, targets []int32) (n int, err error) {
	if len(targets) != logits.Count() {
		return 0, problem("CrossEntropy: targets.len", len(targets), "must be the number of rows, %d", logits.Count())
	}
	for i, t := range targets {
		if t == l.Ignore {
			continue
		}
		if t < 0 || int(t) >= logits.Features {
			return 0, problem(fmt.Sprintf("CrossEntropy: targets[%d]", i), t, "must be from 0 to %d, or %d to be ignored", logits.Features-1, l.Ignore)
		}
		n++
	}
	return n, nil
}
