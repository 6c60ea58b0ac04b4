// Package dispatch chooses which kernel runs a problem: the one that predicts
// the shortest time among those that fit. It says why it did not choose the
// others, and it never falls back silently.
package dispatch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Dispatcher holds backends and chooses among their kernels. It is immutable
// and safe for concurrent use; the With methods return changed copies that
// share the backends.
type Dispatcher struct {
	backends []flashkit.Backend
	kernels  []flashkit.Kernel // of all backends, in order
	missing  []Missing
	choice   choice
	failover func(Failover)
}

// Missing is a backend that this machine cannot run, and why.
type Missing struct {
	Backend string
	Err     error // wraps flashkit.ErrUnavailable
}

// New returns a Dispatcher over the given backends. Where two kernels predict
// the same time, the earlier one wins.
func New(backends ...flashkit.Backend) *Dispatcher {
	d := &Dispatcher{backends: slices.Clone(backends)}
	for _, b := range backends {
		d.kernels = append(d.kernels, b.Kernels()...)
	}
	return d
}

// Kernels returns the kernels that the choice admits, in the order of the backends.
func (d *Dispatcher) Kernels() []flashkit.Kernel {
	return slices.DeleteFunc(slices.Clone(d.kernels), func(k flashkit.Kernel) bool { return !d.choice.admits(&k) })
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

// Pick returns the kernel that Forward or Backward would run. The error is a
// *flashkit.ProblemError if p is invalid, else it joins what every kernel of
// the pass has against p and matches errors.ErrUnsupported.
func (d *Dispatcher) Pick(p flashkit.Problem, s flashkit.Pass) (flashkit.Kernel, error) {
	if err := p.Validate(); err != nil {
		return flashkit.Kernel{}, err
	}
	if k := d.pick(p, s, nil); k != nil {
		return *k, nil
	}
	return flashkit.Kernel{}, d.refusals(p, s)
}

// pick returns the fastest kernel by prediction whose name is not in tried.
func (d *Dispatcher) pick(p flashkit.Problem, s flashkit.Pass, tried []string) *flashkit.Kernel {
	var best *flashkit.Kernel
	var bestCost time.Duration
	for i := range d.kernels {
		k := &d.kernels[i]
		if k.Pass() != s || !d.choice.admits(k) || k.Fits(p) != "" || slices.Contains(tried, k.Name) {
			continue
		}
		if cost := k.Cost(p); best == nil || cost < bestCost {
			best, bestCost = k, cost
		}
	}
	return best
}

func (d *Dispatcher) refusals(p flashkit.Problem, s flashkit.Pass) error {
	var errs []error
	for i := range d.kernels {
		if k := &d.kernels[i]; k.Pass() == s && d.choice.admits(k) {
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
	k, err := d.Pick(p, flashkit.PassForward)
	if err != nil {
		return err
	}
	if err = k.Forward(ctx, p, f); err == nil || !d.mayFailOver(ctx, err) {
		return err
	}
	return d.retry(p, k, err, func(k flashkit.Kernel) error { return k.Forward(ctx, p, f) })
}

// Backward runs the backward pass on the kernel that Pick returns. Its errors
// are those of Pick and of flashkit.Kernel.Backward.
func (d *Dispatcher) Backward(ctx context.Context, p flashkit.Problem, b *flashkit.Backward) error {
	k, err := d.Pick(p, flashkit.PassBackward)
	if err != nil {
		return err
	}
	if err = k.Backward(ctx, p, b); err == nil || !d.mayFailOver(ctx, err) {
		return err
	}
	return d.retry(p, k, err, func(k flashkit.Kernel) error { return k.Backward(ctx, p, b) })
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

// retry runs the next best kernels after k failed with err, until one succeeds
// or none is left; then it returns all failures.
func (d *Dispatcher) retry(p flashkit.Problem, k flashkit.Kernel, err error, run func(flashkit.Kernel) error) error {
	tried, failures := []string{k.Name}, []error{err}
	for {
		next := d.pick(p, k.Pass(), tried)
		if next == nil {
			return errors.Join(failures...)
		}
		d.failover(Failover{p, tried[len(tried)-1], err, next.Name})
		if err = run(*next); err == nil {
			return nil
		}
		tried, failures = append(tried, next.Name), append(failures, err)
	}
}

// A Verdict says what dispatch makes of one kernel, or of a missing backend.
type Verdict struct {
	Name   string        // the kernel, or the backend when it is missing
	Chosen bool          // it is the one that runs
	Reason string        // why not, or why it was chosen
	Cost   time.Duration // predicted time; 0 when it does not fit
}

// Explain returns a verdict for every kernel of the pass and every missing
// backend. The error is a *flashkit.ProblemError if p is invalid.
func (d *Dispatcher) Explain(p flashkit.Problem, s flashkit.Pass) ([]Verdict, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	chosen := d.pick(p, s, nil)
	var verdicts []Verdict
	fits := 0
	for i := range d.kernels {
		k := &d.kernels[i]
		if k.Pass() != s {
			continue
		}
		v := Verdict{Name: k.Name, Chosen: k == chosen, Reason: k.Fits(p)}
		if v.Reason == "" {
			v.Cost = k.Cost(p)
			fits++
		}
		switch {
		case v.Reason == "" && !d.choice.admits(k):
			v.Reason = "fits, but " + d.choice.String() + " was asked for"
		case v.Reason == "" && !v.Chosen:
			v.Reason = "fits, but predicts a longer time"
		}
		verdicts = append(verdicts, v)
	}
	for i := range verdicts {
		if v := &verdicts[i]; v.Chosen {
			v.Reason = d.whyChosen(fits)
		}
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
