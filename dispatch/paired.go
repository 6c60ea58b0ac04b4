package dispatch

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/fastest"
)

// A pairing selects the forward passes that are paired. A paired pass runs on a kernel that sums
// scores in the order of the backward kernel. Kernel.Scores names this order.
//
// The backward kernel recomputes the weights from LSE. With equal orders, the rounding errors of
// the scores cancel. With different orders, the rounding errors change the weights, which matters
// for large scores. So the two kernels of a training step are chosen together, by the sum of their
// times. Pairing has no effect on problems for which no backward kernel exists.
type pairing uint8

const (
	pairedForLSE pairing = iota // calls with LSE, which a backward pass needs
	pairedAlways
	pairedNever
)

// Paired returns a Dispatcher that expects a backward pass after every forward pass. Other
// Dispatchers expect a backward pass only after calls with Args.LSE. Pick and Explain have no Args:
// ask the Paired copy for the kernels of a training step.
func (d *Dispatcher) Paired() *Dispatcher { return d.pairedBy(pairedAlways) }

// Unpaired returns a Dispatcher that expects no backward pass, even with Args.LSE. It suits
// programs that merge results by LSE, or output LSE, without training.
func (d *Dispatcher) Unpaired() *Dispatcher { return d.pairedBy(pairedNever) }

func (d *Dispatcher) pairedBy(p pairing) *Dispatcher {
	c := *d
	c.pairing = p
	return &c
}

// isPaired reports whether a forward pass is paired. lse reports whether the pass has Args.LSE.
func (d *Dispatcher) isPaired(p *flashkit.Problem, s flashkit.Pass, lse bool) bool {
	if d.pairing == pairedNever || d.pairing == pairedForLSE && !lse {
		return false
	}
	return s == flashkit.PassForward && p.Features()&flashkit.ForwardFeatures == 0
}

// scores returns the Kernel.Scores that the kernel of a plan must have, or "" if any kernel may
// run. The result is "" for unpaired passes, and if no eligible candidate sums in the backward
// kernel's order.
func (d *Dispatcher) scores(x *plan, tried []int) string {
	if !x.Paired {
		return ""
	}
	b := d.best(d.memory.plan(fastest.Subject{Problem: x.Problem, Pass: flashkit.PassBackward, Traits: x.Traits}))
	if b == nil {
		return ""
	}
	scores := d.memory.kernels[b.kernel].Scores
	for i := range x.candidates {
		if d.eligible(&x.candidates[i], scores, tried) {
			return scores
		}
	}
	return ""
}

// forwardBefore returns the predicted nanoseconds of the forward pass that is paired with backward
// kernel c, or 0 if d pairs no passes. If no forward kernel sums scores in the order of c, any may
// run.
func (d *Dispatcher) forwardBefore(x *plan, c *candidate) float64 {
	if x.Pass != flashkit.PassBackward || d.pairing == pairedNever {
		return 0
	}
	y := d.memory.plan(fastest.Subject{Problem: x.Problem, Pass: flashkit.PassForward, Traits: x.Traits})
	a, all := y.anchor(), math.Inf(1)
	shortest := all
	for i := range y.candidates {
		f := &y.candidates[i]
		if !d.eligible(f, "", nil) {
			continue
		}
		t := math.Exp(f.log + f.expectedFactor(&a))
		if all = min(all, t); d.memory.kernels[f.kernel].Scores == d.memory.kernels[c.kernel].Scores {
			shortest = min(shortest, t)
		}
	}
	switch {
	case !math.IsInf(shortest, 1):
		return shortest
	case !math.IsInf(all, 1):
		return all
	}
	return 0
}
