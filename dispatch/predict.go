package dispatch

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// A prediction is a kernel's own one, times a factor, plus an overhead. The factor
// is what was measured of the kernel near the size of the problem. Of a kernel that
// was not, dispatch expects that it errs as the anchor does, the best one of its
// place that was measured: how fast the machine is now is no reason to prefer
// one kernel to another. What a kernel did beside others elsewhere moves it against the
// anchor by a factor of two at most.

// An anchor is the kernel of a place that others are compared with: the fastest of
// those that were measured near the size or, if there is none, of all.
type anchor struct {
	time     float64 // logarithm of its nanoseconds
	log      float64 // of its error
	standing *standing
	measured bool
}

// known returns the anchors of a plan, by place.
func (x *plan) known() (list [maxPlaces]anchor) {
	for i := range x.candidates {
		c := &x.candidates[i]
		log, n := c.near()
		a, at := &list[c.place], anchor{c.log + log, log, c.standing, n > 0}
		if n == 0 {
			at.log = c.standing.bounded()
		}
		if a.standing == nil || at.measured && !a.measured || at.measured == a.measured && at.time < a.time {
			*a = at
		}
	}
	return list
}

// bounded returns the logarithm of what the kernel's standing alone makes one
// expect.
func (s *standing) bounded() float64 {
	log, _ := s.log()
	return max(-math.Ln2, min(log, math.Ln2))
}

// An expectation is what is predicted of a candidate.
type expectation struct {
	nanoseconds float64
	factor      float64 // on the kernel's own prediction
	overhead    float64 // beyond that, in nanoseconds
	near        bool    // it was measured near the size
}

// of returns the prediction for a problem of the plan for which the kernel itself
// predicts a certain time.
func (e expectation) of(own time.Duration) time.Duration {
	return duration(float64(own)*e.factor + e.overhead)
}

// expect returns what is predicted of a candidate.
func (m *memory) expect(c *candidate, known *[maxPlaces]anchor) expectation {
	a := &known[c.place]
	log, n := c.near()
	if n == 0 {
		log = a.log + c.standing.over(a.standing)
	}
	factor, overhead := math.Exp(log), m.overhead(c.place)
	return expectation{c.own*factor + overhead, factor, overhead, n > 0}
}

// overhead returns the nanoseconds that calls take at a place beyond what kernels
// predict. It is the same for all kernels there, so a single place needs none.
func (m *memory) overhead(place int16) float64 {
	if len(m.places) == 1 {
		return 0
	}
	return float64(m.places[place].overhead.Load())
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
func (m *memory) number(c choice) uint64 {
	m.probing.Lock()
	defer m.probing.Unlock()
	i := slices.Index(m.choices, c)
	if i < 0 {
		i = len(m.choices)
		m.choices = append(m.choices, c)
	}
	return uint64(i)
}

// fastest returns the admitted candidate with the shortest predicted time, up to
// noise, nil if there is none that is not in tried.
func (d *Dispatcher) fastest(x *plan, tried []int) *candidate {
	known, least := x.known(), math.Inf(1)
	for i := range x.candidates {
		if c := &x.candidates[i]; d.may(c, tried) {
			least = min(least, c.own)
		}
	}
	var best, first *candidate // by prediction, and by the kernels' own ones among those that were measured
	var shortest, its float64
	for i := range x.candidates {
		c := &x.candidates[i]
		if !d.may(c, tried) {
			continue
		}
		e := d.memory.expect(c, &known)
		if (e.near || c.own <= elsewhere*least) && (best == nil || e.nanoseconds < shortest) {
			best, shortest = c, e.nanoseconds
		}
		if e.near && (first == nil || c.own < first.own) {
			first, its = c, e.nanoseconds
		}
	}
	if first != nil && its < noise*shortest {
		return first
	}
	return best
}

// noise is the factor below which measured times do not overrule what kernels predict.
const noise = 1.05

// may reports whether the choice admits a candidate that has not been tried.
func (d *Dispatcher) may(c *candidate, tried []int) bool {
	return d.admitted[c.kernel] && !slices.Contains(tried, c.kernel)
}

// What a trial may take.
const (
	firstTrial  = 3   // the first call of a regime that may be one
	trialShare  = 100 // of the time of a regime's calls so far, one part
	tooSlow     = 2   // times what the best one takes
	outclassed  = 3   // times what the best one predicts itself
	again       = 64  // calls until one that may gain is run again
	idleDevices = time.Second
)

// A tally counts the calls of a regime.
type tally struct {
	calls atomic.Uint32
	due   atomic.Uint32 // no trial before so many calls
}

// rival returns the candidate to run in place of the best one, to measure it, nil
// for none: if the loss to be expected is a hundredth of what the calls of the
// regime took, and there were twice as many of them as at the last trial. So choices
// that are wrong everywhere, and of which no call tells, end some time, and trials grow
// rare.
func (d *Dispatcher) rival(x *plan, best *candidate) *candidate {
	if best.own < float64(short) || len(x.candidates) < 2 {
		return nil
	}
	n, due := x.tally.calls.Add(1), x.tally.due.Load()
	if n < max(due, firstTrial) {
		return nil
	}
	r, fresh, gain := d.promising(x, best, n)
	next := 2 * n
	switch {
	case r == nil:
		next = n + n/8 + 1 // none is worth it yet
	case fresh:
		next = n + 1 // its first call may have had to load or allocate something
	case gain:
		next = min(next, n+again)
	}
	if !x.tally.due.CompareAndSwap(due, next) {
		return nil
	}
	return r
}

// promising returns the candidate that was measured least of those that a trial
// after n calls may run, whether it was not measured at all, and whether the trial
// may gain by it.
func (d *Dispatcher) promising(x *plan, best *candidate, n uint32) (rival *candidate, fresh, gain bool) {
	known := x.known()
	now := d.memory.expect(best, &known).nanoseconds
	limit := min(now*(1+float64(n)/trialShare), now*tooSlow)
	var fewest int
	var shortest float64
	for i := range x.candidates {
		c := &x.candidates[i]
		if c == best || !d.admitted[c.kernel] || c.own > outclassed*best.own || !d.memory.ready(x, c, best) {
			continue
		}
		t, calls := d.memory.hope(c, best, &known)
		if t <= limit && (rival == nil || calls < fewest || calls == fewest && t < shortest) {
			rival, fewest, shortest = c, calls, t
		}
	}
	return rival, rival != nil && fewest == 0, shortest < now
}

// ready reports whether a trial may run on a candidate's place. The first call on a
// device takes long, for what it has to load.
func (m *memory) ready(x *plan, c, best *candidate) bool {
	return c.place == best.place || m.places[c.place].used.Load() || c.place == 0 || x.spent.Load() > int64(idleDevices)
}

// hope returns the shortest time that a candidate may reasonably take, and how many
// calls of it were measured near the size. One that was measured may have met a busy
// machine. Of one that was never measured beside others little is known: it gets half
// of the blame, as logarithm, for an anchor that is slower than it predicts, which
// may be the anchor's fault or the machine's. If it was called once at most and comes
// near the best one by its own prediction, that may err by as much as is believed of any.
func (m *memory) hope(c, best *candidate, known *[maxPlaces]anchor) (nanoseconds float64, calls int) {
	a := &known[c.place]
	log := a.log + c.standing.over(a.standing)
	near, n := c.near()
	if _, beside := c.standing.log(); beside == 0 {
		log = min(log, log/2)
		if n < 2 && c.own <= elsewhere*best.own {
			log -= math.Log(elsewhere)
		}
	}
	if n > 1 {
		log = min(log, near)
	}
	return c.own*math.Exp(log) + m.overhead(c.place), n
}
