package dispatch

import (
	"math"
	"slices"

	"github.com/flashkit-go/flashkit/internal/fastest"
)

// A prediction is a kernel's own one, times a factor. The factor is what was
// measured of the kernel near the size of the problem. Of a kernel that was not,
// dispatch expects that it errs as the anchor does: how fast the machine is now is no
// reason to prefer one kernel to another. What was measured side by side elsewhere
// moves it against the anchor, by a factor of two at most.

// An anchor is the kernel of a plan that others are compared with: the fastest of
// those that were measured near the size or, if there is none, of all by their own
// predictions.
type anchor struct {
	time     float64 // logarithm of its nanoseconds
	log      float64 // of its error
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

// expect returns the logarithm of the factor to expect of a candidate.
func (c *candidate) expectedFactor(a *anchor) float64 {
	if log, ok := c.near(); ok {
		return log
	}
	return a.log + c.standing.excess(a.standing)
}

// best is fastest with its latest answer kept in the plan, which holds for a choice
// until something is learned.
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

// number returns the number of a choice among those of the dispatchers that share m.
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

// fastest returns the admitted candidate with the shortest predicted time, nil if
// there is none that is not in tried. One that was not measured near the size passes
// the one with the shortest prediction of its own only if it is faster beyond doubt.
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
		t := c.log + c.expectedFactor(&a)
		if _, near := c.near(); !near && c != first {
			return t + math.Log(margin), c.own <= maxShift*first.own
		}
		return t, true
	})]
}

// first returns the candidate with the shortest prediction of its own of those that may
// run, nil if there is none.
func (d *Dispatcher) fastestOwn(x *plan, scores string, tried []int) *candidate {
	i := fastest.Least(len(x.candidates), func(i int) (float64, bool) {
		return x.candidates[i].own, d.eligible(&x.candidates[i], scores, tried)
	})
	if i < 0 {
		return nil
	}
	return &x.candidates[i]
}

// may reports whether the choice admits a candidate that has not been tried, and it sums
// scores as asked, "" for any way. A sandboxed kernel yields to those of vector instructions
// until one of them has failed.
func (d *Dispatcher) eligible(c *candidate, scores string, tried []int) bool {
	if c.yields && d.choice.isAuto() && len(tried) == 0 {
		return false
	}
	return d.admitted[c.kernel] && !slices.Contains(tried, c.kernel) && (scores == "" || d.memory.kernels[c.kernel].Scores == scores)
}
