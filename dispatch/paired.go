package dispatch

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/fastest"
)

// A pairing selects the forward passes that run on a kernel with the backward kernel's order of
// summing scores, Kernel.Scores. Gradients are then as exact as within one family of kernels.
// Otherwise a weight may differ by the rounding of a score, which matters for large scores. But a
// decode kernel is many times faster for one query row, and no backward kernel sums in its order.
// Problems without a backward pass, or such a kernel, are unaffected.
type pairing uint8

const (
	pairedForLSE pairing = iota // calls with LSE, which a backward pass needs
	pairedAlways
	pairedNever
)

// Paired returns a Dispatcher that assumes a backward pass after every forward pass. Other
// Dispatchers assume it only of calls with Args.LSE, unknown to Pick and Explain. Use Paired to ask
// these for the kernels of a training step.
func (d *Dispatcher) Paired() *Dispatcher { return d.pairedBy(pairedAlways) }

// Unpaired returns a Dispatcher that assumes no backward pass, even with Args.LSE. It suits
// programs that merge results by LSE, or report LSE, without training.
func (d *Dispatcher) Unpaired() *Dispatcher { return d.pairedBy(pairedNever) }

func (d *Dispatcher) pairedBy(p pairing) *Dispatcher {
	c := *d
	c.pairing = p
	return &c
}

// isPaired reports whether a forward pass, with or without LSE, is paired.
func (d *Dispatcher) isPaired(p *flashkit.Problem, s flashkit.Pass, lse bool) bool {
	if d.pairing == pairedNever || d.pairing == pairedForLSE && !lse {
		return false
	}
	return s == flashkit.PassForward && p.Features()&flashkit.ForwardFeatures == 0
}

// scores returns the required order of summing scores, "" for any.
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
