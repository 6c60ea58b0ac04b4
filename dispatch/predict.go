package dispatch

import (
	"math"
	"slices"

	"github.com/flashkit-go/flashkit/internal/fastest"
)

// Dispatch's prediction for a kernel is the kernel's own prediction times an expected factor. A
// kernel measured near the problem's size, within a factor of four, has the measured factor. Any
// other kernel has the anchor's factor, so that on a slow machine unmeasured kernels do not seem
// faster. If this kernel and the anchor were measured in turn at another size, their measured ratio
// changes the factor by at most maxShift.

// An anchor is the kernel of a plan with which the other kernels are compared. It is the fastest
// kernel measured near the problem's size. If no kernel is measured near this size, the anchor is
// the kernel with the shortest own prediction.
type anchor struct {
	time     float64 // logarithm of the anchor's predicted nanoseconds
	log      float64 // logarithm of the anchor's factor
	standing *factor
	near     bool
}

func (x *plan) anchor() (a anchor) {
	for i := range x.candidates {
		c := &x.candidates[i]
		log, ok := c.near()
		if b := (anchor{c.log + log, log, c.standing, ok}); a.standing == nil || b.near && !a.near || b.near == a.near && b.time < a.time {
			a = b
		}
	}
	if !a.near && a.standing != nil {
		log, _ := a.standing.log()
		a.log = clampShift(log)
	}
	return a
}

// expectedFactor returns the logarithm of a candidate's expected factor, given its plan's anchor.
func (c *candidate) expectedFactor(a *anchor) float64 {
	if log, ok := c.near(); ok {
		return log
	}
	return a.log + c.standing.excess(a.standing)
}

// best returns fastest's result, cached in the plan. The cached result is valid for one choice,
// until the next measurement.
func (d *Dispatcher) best(x *plan) *candidate {
	const indexBits, choiceBits = 8, 8
	want := (d.memory.version.Load()+1)<<(indexBits+choiceBits) | d.id<<indexBits
	if kept := x.best.Load(); kept>>indexBits<<indexBits == want {
		return &x.candidates[kept&(1<<indexBits-1)]
	}
	c := d.fastest(x, nil)
	for i := range x.candidates {
		if c == &x.candidates[i] && i < 1<<indexBits && d.id < 1<<choiceBits {
			x.best.Store(want | uint64(i))
		}
	}
	return c
}

// choiceNumber returns the index of c in m.chosen. It adds c if necessary.
func (m *memory) choiceNumber(c choice) uint64 {
	m.probing.Lock()
	defer m.probing.Unlock()
	i := slices.Index(m.chosen, c)
	if i < 0 {
		i = len(m.chosen)
		m.chosen = append(m.chosen, c)
	}
	return uint64(i)
}

// fastest returns the eligible candidate with the shortest predicted time, or nil if no candidate
// is eligible. The time of a backward kernel includes the forward pass; see forwardBefore. If a
// candidate has no measurement near the problem's size, its time is multiplied by margin, unless its
// own prediction is the shortest.
func (d *Dispatcher) fastest(x *plan, tried []int) *candidate {
	scores := d.scores(x, tried)
	first := d.fastestOwn(x, scores, tried)
	if first == nil {
		return nil
	}
	a := x.anchor()
	return &x.candidates[fastest.Least(len(x.candidates), func(i int) (float64, bool) {
		c := &x.candidates[i]
		if !d.eligible(c, scores, tried) {
			return 0, false
		}
		t, may := math.Exp(c.log+c.expectedFactor(&a)), true
		if _, near := c.near(); !near && c != first {
			t, may = t*margin, c.own <= maxShift*first.own
		}
		return t + d.forwardBefore(x, c), may
	})]
}

// fastestOwn returns the eligible candidate with the shortest own prediction, or nil if no
// candidate is eligible. The prediction of a backward kernel includes the forward pass.
func (d *Dispatcher) fastestOwn(x *plan, scores string, tried []int) *candidate {
	i := fastest.Least(len(x.candidates), func(i int) (float64, bool) {
		c := &x.candidates[i]
		return c.own + d.forwardBefore(x, c), d.eligible(c, scores, tried)
	})
	if i < 0 {
		return nil
	}
	return &x.candidates[i]
}

// eligible reports whether a candidate may run: d admits it, it is not in tried, and it sums scores
// in the given order ("" for any). If all kernels are admitted, a sandboxed kernel is eligible only
// if no vector kernel fits, or once another kernel has failed.
func (d *Dispatcher) eligible(c *candidate, scores string, tried []int) bool {
	if c.yields && d.choice.isAuto() && len(tried) == 0 {
		return false
	}
	return d.admitted[c.kernel] && !slices.Contains(tried, c.kernel) && (scores == "" || d.memory.kernels[c.kernel].Scores == scores)
}
