package dispatch

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/fastest"
)

// A pairing says which forward passes run on a kernel that sums scores in the order of the
// kernel of the backward pass, Kernel.Scores. Then the gradients are as exact as with one family
// of kernels. Else the weights of the backward pass may be off by the rounding of a score, which
// matters where scores are large: a decode kernel is many times as fast for one query row, and
// no backward kernel sums as it does. Problems without a backward pass, or without such a kernel,
// are not affected.
type pairing uint8

const (
	pairedForLSE pairing = iota // those that ask for LSE, as a backward pass needs it
	pairedAlways
	pairedNever
)

// Paired returns a Dispatcher for which every forward pass comes before a backward pass. Other
// Dispatchers assume that only of a call with Args.LSE, which Pick and Explain do not
// see. So it is for who asks these what a training step runs.
func (d *Dispatcher) Paired() *Dispatcher { return d.pairedBy(pairedAlways) }

// Unpaired returns a Dispatcher for which no forward pass comes before a backward pass, not even
// one with Args.LSE: for programs that merge results by LSE, or report LSE, and train nothing.
func (d *Dispatcher) Unpaired() *Dispatcher { return d.pairedBy(pairedNever) }

func (d *Dispatcher) pairedBy(p pairing) *Dispatcher {
	c := *d
	c.pairing = p
	return &c
}

// pairs reports whether a forward pass of a problem, with LSE or without, is paired.
func (d *Dispatcher) isPaired(p *flashkit.Problem, s flashkit.Pass, lse bool) bool {
	if d.pairing == pairedNever || d.pairing == pairedForLSE && !lse {
		return false
	}
	return s == flashkit.PassForward && p.Features()&flashkit.ForwardFeatures == 0
}

// scores returns how the scores of a plan have to be summed, "" for any way.
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
