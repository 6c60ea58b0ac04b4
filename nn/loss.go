package nn

import (
	"fmt"
	"math"
)

// A CrossEntropy is the loss of a classification. The softmax of a row's logits gives the
// probability of the row's target. The loss is the mean of -ln(probability) over the rows.
type CrossEntropy struct {
	// Ignore is the target that excludes a row from the loss. PyTorch's default is -100.
	Ignore int32
}

// Forward returns the loss of logits, [rows, classes], with one target per row: a class, or Ignore.
// If all targets are Ignore, the loss is 0. In this case PyTorch returns NaN.
func (l *CrossEntropy) Forward(s *Step, logits Tensor, targets []int32) float64 {
	if !s.accepts("CrossEntropy", "logits", &logits, 0, nil) {
		return 0
	}
	counted, err := l.count(&logits, targets)
	if !s.ok(err) {
		return 0
	}
	var grad Tensor
	if s.train { // computed here, because Backward would need the exponentials again
		grad = s.NewTensor(logits.Rows, logits.Features)
	}
	w := s.startRows(logits.Count(), crossEntropyRows)
	w.x, w.y, w.targets, w.ignore, w.scale = logits, grad, targets, l.Ignore, 1/float64(counted)
	w.sums = append(w.sums[:0], make([]float64, w.blocks())...)
	s.runRows(16 * logits.Features) // an exponential takes about the time of 16 additions
	sum := 0.0
	for _, x := range w.sums {
		sum += x
	}
	s.Push(l, grad)
	return sum / float64(max(counted, 1))
}

// crossEntropyRows sums the losses of a block of rows. In training it also computes the gradients
// of the rows' logits.
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

// Backward returns the gradient of the logits of the last Forward, [rows, classes].
func (l *CrossEntropy) Backward(s *Step) Tensor { return s.Pop(l) }

// crossEntropy returns the loss of a row x. Unless grad is nil, crossEntropy sets grad to scale
// times the loss's gradient with respect to x.
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
