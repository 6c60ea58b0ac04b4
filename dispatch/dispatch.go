// Package dispatch chooses which kernel runs a problem: the one that is predicted
// to be the fastest among those that fit. It says why it did not choose the
// others, and it never falls back silently.
//
// A kernel predicts its own time. A Dispatcher multiplies that by what calls of
// the kernel on this machine took over what it predicted for problems alike,
// which it knows from a table of common machines, from a profile on disk, from
// probes of some milliseconds, and from the calls that it makes. What it knows
// is bounded, and no call waits for another because of it.
package dispatch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Dispatcher holds backends and chooses among their kernels. It is safe for
// concurrent use; the With methods return changed copies that share the backends
// and what is known of their speed.
type Dispatcher struct {
	backends []flashkit.Backend
	memory   *memory
	admitted []bool // by kernel: the choice allows it
	missing  []Missing
	choice   choice
	failover func(Failover)
	observer func(Ran)
	frozen   bool
	machine  machine

	profileErr error
}

// Missing is a backend that this machine cannot run, and why.
type Missing struct {
	Backend string
	Err     error // wraps flashkit.ErrUnavailable
}

// New returns a Dispatcher over the given backends, which knows what the table
// says of machines like this one. Where two kernels are predicted to take the
// same time, the earlier one wins.
func New(backends ...flashkit.Backend) *Dispatcher {
	d := &Dispatcher{backends: slices.Clone(backends), machine: identify(backends)}
	d.remember(newMemory(backends))
	d.memory.adopt(d.machine)
	return d
}

// remember gives d a memory, and finds which of its kernels the choice admits.
func (d *Dispatcher) remember(m *memory) {
	d.memory, d.admitted = m, make([]bool, len(m.kernels))
	for i := range m.kernels {
		d.admitted[i] = d.choice.admits(&m.kernels[i])
	}
}

// Kernels returns the kernels that the choice admits, in the order of the
// backends. Their Cost is what dispatch predicts.
func (d *Dispatcher) Kernels() (list []flashkit.Kernel) {
	for i, k := range d.memory.kernels {
		if d.admitted[i] {
			list = append(list, k)
		}
	}
	return list
}

// Missing returns the backends that could not be opened, with their reasons.
func (d *Dispatcher) Missing() []Missing { return slices.Clone(d.missing) }

// Close closes every backend, also after one of them failed to.
func (d *Dispatcher) Close() error {
	var errs []error
	for _, b := range d.backends {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// Pick returns the kernel that Forward or Backward would run, as far as is known
// without a probe. Its Cost is what dispatch predicts. The error is a
// *flashkit.ProblemError if p is invalid, else it joins what every kernel of
// the pass has against p and matches errors.ErrUnsupported.
func (d *Dispatcher) Pick(p flashkit.Problem, s flashkit.Pass) (flashkit.Kernel, error) {
	if err := p.Validate(); err != nil {
		return flashkit.Kernel{}, err
	}
	if c := d.fastest(d.memory.plan(p, s), nil); c != nil {
		return d.memory.kernels[c.kernel], nil
	}
	return flashkit.Kernel{}, d.refusals(p, s)
}

// fastest returns the admitted candidate with the shortest predicted time, nil if
// there is none that is not in tried.
func (d *Dispatcher) fastest(x *plan, tried []int) *candidate {
	var best *candidate
	var shortest float64
	for i := range x.candidates {
		c := &x.candidates[i]
		if !d.admitted[c.kernel] || slices.Contains(tried, c.kernel) {
			continue
		}
		if t := c.predict(); best == nil || t < shortest {
			best, shortest = c, t
		}
	}
	return best
}

// choose returns the candidate to run, after a probe if that is worth its time.
func (d *Dispatcher) choose(ctx context.Context, p flashkit.Problem, s flashkit.Pass) (*candidate, error) {
	x := d.memory.find(p, s)
	if x == nil {
		if err := p.Validate(); err != nil {
			return nil, err
		}
		x = d.planned(ctx, p, s)
	}
	if c := d.fastest(x, nil); c != nil {
		return c, nil
	}
	return nil, d.refusals(p, s)
}

// planned returns the plan of a valid problem that has none yet.
func (d *Dispatcher) planned(ctx context.Context, p flashkit.Problem, s flashkit.Pass) *plan {
	x := d.memory.newPlan(p, s)
	if d.probe(ctx, x) {
		d.memory.forget() // they did not know what is known now
		x = d.memory.newPlan(p, s)
	}
	d.memory.keep(x)
	return x
}

// A Ran reports a call of a kernel, also one that failed.
type Ran struct {
	Problem flashkit.Problem
	Pass    flashkit.Pass
	Kernel  string
	Took    time.Duration
	Err     error
}

// WithObserver returns a Dispatcher that reports every call of a kernel after it
// ended: which one was chosen, and what it took. report may be called from several
// goroutines at once, and the caller waits for it.
func (d *Dispatcher) WithObserver(report func(Ran)) *Dispatcher {
	c := *d
	c.observer = report
	return &c
}

// run runs a candidate, and reports it if there is an observer.
func (d *Dispatcher) run(p flashkit.Problem, c *candidate, call func(flashkit.Kernel) error) error {
	if d.observer == nil {
		return d.measured(c, call)
	}
	start := time.Now()
	err := d.measured(c, call)
	k := &d.memory.kernels[c.kernel]
	d.observer(Ran{p, k.Pass(), k.Name, time.Since(start), err})
	return err
}

// measured runs a candidate and learns from what that takes.
func (d *Dispatcher) measured(c *candidate, call func(flashkit.Kernel) error) error {
	k := d.memory.kernels[c.kernel]
	if d.frozen {
		return call(k)
	}
	begun := d.memory.calls.Add(callBegun)
	start := time.Now()
	err := call(k)
	took := time.Since(start)
	ended := d.memory.calls.Add(callEnded)
	if err == nil {
		c.took(took, ended == begun+callEnded && ended&callsRunning == 0)
	}
	return err
}

func (d *Dispatcher) refusals(p flashkit.Problem, s flashkit.Pass) error {
	var errs []error
	for i := range d.memory.kernels {
		if k := &d.memory.kernels[i]; k.Pass() == s && d.admitted[i] {
			errs = append(errs, &flashkit.UnsupportedError{Kernel: k.Name, Problem: p, Reason: k.Fits(p)})
		}
	}
	if len(errs) == 0 {
		return &flashkit.UnsupportedError{Kernel: d.choice.String(), Problem: p, Reason: "it has no kernel for the " + s.String() + " pass"}
	}
	return errors.Join(errs...)
}

// Forward runs the forward pass on the kernel that Pick returns. Its errors are
// those of Pick and of flashkit.Kernel.Forward.
func (d *Dispatcher) Forward(ctx context.Context, p flashkit.Problem, f *flashkit.Forward) error {
	return d.do(ctx, p, flashkit.PassForward, func(k flashkit.Kernel) error { return k.Forward(ctx, p, f) })
}

// Backward runs the backward pass on the kernel that Pick returns. Its errors
// are those of Pick and of flashkit.Kernel.Backward.
func (d *Dispatcher) Backward(ctx context.Context, p flashkit.Problem, b *flashkit.Backward) error {
	return d.do(ctx, p, flashkit.PassBackward, func(k flashkit.Kernel) error { return k.Backward(ctx, p, b) })
}

// do runs a pass on the fastest kernel and, if that fails and failover is on, on
// the next ones.
func (d *Dispatcher) do(ctx context.Context, p flashkit.Problem, s flashkit.Pass, call func(flashkit.Kernel) error) error {
	c, err := d.choose(ctx, p, s)
	if err != nil {
		return err
	}
	if err = d.run(p, c, call); err == nil || !d.mayFailOver(ctx, err) {
		return err
	}
	return d.retry(p, s, c, err, call)
}

// A Failover reports that a kernel failed and another one was run instead.
type Failover struct {
	Problem flashkit.Problem
	Failed  string // the kernel that failed
	Err     error  // how
	Next    string // the kernel that runs now
}

// WithFailover returns a Dispatcher that, when a kernel fails, reports it and
// runs the next best one. Without it a failure is returned as it is. It never
// acts when a choice was forced, when the caller is at fault, or when the
// context ended. report may be called from several goroutines at once.
func (d *Dispatcher) WithFailover(report func(Failover)) *Dispatcher {
	c := *d
	c.failover = report
	return &c
}

func (d *Dispatcher) mayFailOver(ctx context.Context, err error) bool {
	var wrong *flashkit.ProblemError
	return d.failover != nil && d.choice.isAuto() && ctx.Err() == nil && !errors.As(err, &wrong)
}

// retry runs the next best kernels after one failed with err, until one succeeds
// or none is left; then it returns all failures.
func (d *Dispatcher) retry(p flashkit.Problem, s flashkit.Pass, c *candidate, err error, call func(flashkit.Kernel) error) error {
	x := d.memory.plan(p, s)
	tried, failures := []int{c.kernel}, []error{err}
	for {
		next := d.fastest(x, tried)
		if next == nil {
			return errors.Join(failures...)
		}
		d.failover(Failover{p, d.memory.kernels[c.kernel].Name, err, d.memory.kernels[next.kernel].Name})
		if err = d.run(p, next, call); err == nil {
			return nil
		}
		c, tried, failures = next, append(tried, next.kernel), append(failures, err)
	}
}

// A Verdict says what dispatch makes of one kernel, or of a missing backend.
type Verdict struct {
	Name   string        // the kernel, or the backend when it is missing
	Chosen bool          // it is the one that runs
	Reason string        // why not, or why it was chosen
	Cost   time.Duration // predicted time; 0 when it does not fit
	Last   time.Duration // what its latest call on this problem took; 0 if none is remembered
}

// Explain returns a verdict for every kernel of the pass and every missing
// backend. It runs nothing. The error is a *flashkit.ProblemError if p is invalid.
func (d *Dispatcher) Explain(p flashkit.Problem, s flashkit.Pass) ([]Verdict, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	x := d.memory.plan(p, s)
	chosen := d.fastest(x, nil)
	var verdicts []Verdict
	for i := range d.memory.kernels {
		k := &d.memory.kernels[i]
		if k.Pass() != s {
			continue
		}
		v := Verdict{Name: k.Name, Reason: k.Fits(p)}
		for j := range x.candidates {
			if c := &x.candidates[j]; c.kernel == i {
				v.Chosen, v.Cost, v.Last = c == chosen, c.predicted(), time.Duration(c.last.Load())
			}
		}
		switch {
		case v.Chosen:
			v.Reason = d.whyChosen(len(x.candidates))
		case v.Reason == "" && !d.admitted[i]:
			v.Reason = "fits, but " + d.choice.String() + " was asked for"
		case v.Reason == "":
			v.Reason = "fits, but predicts a longer time"
		}
		verdicts = append(verdicts, v)
	}
	for _, m := range d.missing {
		verdicts = append(verdicts, Verdict{Name: m.Backend, Reason: strings.TrimPrefix(m.Err.Error(), m.Backend+": ")})
	}
	return verdicts, nil
}

func (d *Dispatcher) whyChosen(fits int) string {
	switch {
	case !d.choice.isAuto():
		return d.choice.String() + " was asked for"
	case fits == 1:
		return "the only kernel that fits"
	}
	return "predicts the shortest time"
}
