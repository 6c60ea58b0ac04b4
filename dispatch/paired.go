package dispatch

import "github.com/flashkit-go/flashkit"

// Paired returns a Dispatcher for training: its forward passes run on a kernel that sums
// scores in the order of the kernel that it takes for the backward pass, Kernel.Scores.
// Then the gradients are as exact as those of one family of kernels. Else the weights of
// the backward pass may be off by the rounding of a score, which matters where scores are
// large: a decode kernel is many times as fast for one query row, and no backward kernel
// sums as it does. Problems without a backward pass, or without such a kernel, are not
// affected.
func (d *Dispatcher) Paired() *Dispatcher {
	c := *d
	c.paired = true
	c.remember(d.memory)
	return &c
}

// pairs returns how the scores of a plan have to be summed, "" for any way.
func (d *Dispatcher) pairs(x *plan, tried []int) string {
	if !d.paired || x.pass != flashkit.PassForward || x.problem.Features()&flashkit.ForwardFeatures != 0 {
		return ""
	}
	y := d.memory.plan(subject{x.problem, flashkit.PassBackward, x.traits})
	b := d.best(y)
	if b == nil {
		return ""
	}
	scores := d.memory.kernels[b.kernel].Scores
	for i := range x.candidates {
		if d.may(&x.candidates[i], scores, tried) {
			return scores
		}
	}
	return ""
}
