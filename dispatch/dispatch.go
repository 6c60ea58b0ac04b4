// Package dispatch chooses which kernel runs a problem: the one that is predicted
// to be the fastest among those that fit. It says why it did not choose the
// others, and it never falls back silently.
//
// A kernel predicts its own time. A Dispatcher corrects the prediction by the
// ratio of measured to predicted time, which comes from a profile on disk and from
// short probes that time kernels side by side. The times of ordinary calls change
// no choice. The state is bounded in size, and calls do not block each other on it.
// docs/dispatch.md explains the model.
package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
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
	id       uint64 // of the rule in the memory
	missing  []Missing
	unopened []string // backends that no one asked for
	opened   string   // what was asked for instead
	choice   choice
	failover func(Failover)
	observer func(Ran)
	frozen   bool
	pairing  pairing
	machine  machine

	profileErr error
}

// Missing is a backend that this machine cannot run, and why.
type Missing struct {
	Backend string
	Err     error // wraps flashkit.ErrUnavailable
}

// New returns a Dispatcher over the given backends, which knows what kernels
// predict of themselves. Where two kernels are predicted to take the same time, the
// earlier one wins.
func New(backends ...flashkit.Backend) *Dispatcher {
	d := &Dispatcher{backends: slices.Clone(backends), machine: thisMachine(backends)}
	d.setMemory(newMemory(backends))
	return d
}

// remember gives d a memory, and finds which of its kernels the choice admits.
func (d *Dispatcher) setMemory(m *memory) {
	d.memory, d.admitted = m, make([]bool, len(m.kernels))
	for i := range m.kernels {
		d.admitted[i] = d.choice.admits(&m.kernels[i])
	}
	d.id = m.choiceNumber(d.choice)
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

// Backends returns the backends that d was made of, in their order. Close closes them.
func (d *Dispatcher) Backends() []flashkit.Backend { return slices.Clone(d.backends) }

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

// Pick returns the kernel that Forward, without Args.LSE, or Backward would run, as far as is
// known without a probe; PickWithLSE returns what Forward runs with Args.LSE. Its Cost is
// what dispatch predicts. The error is a *flashkit.ProblemError if p or s is invalid, else it
// joins what every kernel of the pass has against p and matches errors.ErrUnsupported.
func (d *Dispatcher) Pick(p flashkit.Problem, s flashkit.Pass) (flashkit.Kernel, error) {
	return d.pick(p, s, false)
}

// PickWithLSE is Pick for a forward pass with Args.LSE.
func (d *Dispatcher) PickWithLSE(p flashkit.Problem) (flashkit.Kernel, error) {
	return d.pick(p, flashkit.PassForward, true)
}

func (d *Dispatcher) pick(p flashkit.Problem, s flashkit.Pass, lse bool) (flashkit.Kernel, error) {
	if err := valid(p, s); err != nil {
		return flashkit.Kernel{}, err
	}
	if c := d.fastest(d.planFor(p, s, lse), nil); c != nil {
		return d.memory.kernels[c.kernel], nil
	}
	return flashkit.Kernel{}, d.refusals(p.Ask(s))
}

// valid returns nil, or the *flashkit.ProblemError of a problem or pass that there is not.
func valid(p flashkit.Problem, s flashkit.Pass) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return s.Validate()
}

// A decision is the kernel that runs a call, and what led to it.
type decision struct {
	call   *flashkit.Call
	plan   *plan
	runs   *candidate
	probed time.Duration // what a probe took before
}

// choose decides what runs, after a probe if that is worth its time.
func (d *Dispatcher) choose(ctx context.Context, c *flashkit.Call) (decision, error) {
	x := d.memory.plan(d.planKey(c))
	best := d.best(x)
	if best == nil {
		return decision{}, d.refusals(c)
	}
	if d.frozen || d.isSettled(x) || best.own < float64(shortCall) {
		return decision{c, x, best, 0}, nil
	}
	took := d.probe(ctx, x, best, false)
	return decision{c, x, d.best(x), took}, nil
}

// A Ran reports a call of a kernel, also one that failed.
type Ran struct {
	Problem flashkit.Problem
	Pass    flashkit.Pass
	Kernel  string
	Took    time.Duration // of the kernel's call
	Probed  time.Duration // what measuring kernels took before it; mostly 0
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

// run runs what was decided, and reports it.
func (d *Dispatcher) run(ctx context.Context, x decision) error {
	k := &d.memory.kernels[x.runs.kernel]
	if d.frozen && d.observer == nil {
		return k.Do(ctx, x.call)
	}
	p, start := x.call.Problem, time.Now() // the plan's problem is one alike
	err := k.Do(ctx, x.call)
	took := time.Since(start)
	if err == nil && !d.frozen {
		x.runs.last.Store(max(1, int64(took)))
		if x.runs.own >= float64(shortCall) {
			x.plan.spent.Add(int64(took))
		}
	}
	if d.observer != nil {
		d.observer(Ran{p, x.plan.Pass, k.Name, took, x.probed, err})
	}
	return err
}

func (d *Dispatcher) refusals(c *flashkit.Call) error {
	var errs []error
	for i := range d.memory.kernels {
		if k := &d.memory.kernels[i]; k.Pass == c.Pass && d.admitted[i] {
			errs = append(errs, &flashkit.UnsupportedError{Kernel: k.Name, Problem: c.Problem, Reason: k.Fits(c)})
		}
	}
	if len(errs) == 0 {
		return &flashkit.UnsupportedError{Kernel: d.choice.String(), Problem: c.Problem, Reason: "no kernel for the " + c.Pass.String() + " pass"}
	}
	return errors.Join(errs...)
}

// Forward runs the forward pass on the kernel that Pick returns or, with Args.LSE, on one that
// sums scores as the kernel of Backward does: see Paired and Unpaired. Its errors are
// those of Pick and of flashkit.Kernel.Compute.
func (d *Dispatcher) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return d.do(ctx, p, flashkit.PassForward, args)
}

// Backward runs the backward pass on the kernel that Pick returns. Its errors
// are those of Pick and of flashkit.Kernel.Compute.
func (d *Dispatcher) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return d.do(ctx, p, flashkit.PassBackward, args)
}

// calls are those in progress, so that one allocates nothing.
var calls = sync.Pool{New: func() any { return new(flashkit.Call) }}

// do runs a pass on the fastest kernel and, if that fails and failover is on, on
// the next ones.
func (d *Dispatcher) do(ctx context.Context, p flashkit.Problem, s flashkit.Pass, args *flashkit.Args) error {
	c := calls.Get().(*flashkit.Call)
	defer func() {
		*c = flashkit.Call{}
		calls.Put(c)
	}()
	if err := c.Set(p, s, args); err != nil {
		return err
	}
	x, err := d.choose(ctx, c)
	if err != nil {
		return err
	}
	if err = d.run(ctx, x); err == nil || p.Carry || !d.mayFailOver(ctx, err) {
		return err
	}
	return d.retry(ctx, x, err)
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
// acts when a choice was forced, when the caller is at fault, when the context
// ended, or when the problem has Carry: the kernel that failed may have overwritten
// the O and LSE that another one would have to continue. report may be called from several goroutines at once.
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
func (d *Dispatcher) retry(ctx context.Context, x decision, err error) error {
	tried, failures := []int{x.runs.kernel}, []error{err}
	for {
		next := d.fastest(x.plan, tried)
		if next == nil {
			return errors.Join(failures...)
		}
		d.failover(Failover{x.call.Problem, d.memory.kernels[x.runs.kernel].Name, err, d.memory.kernels[next.kernel].Name})
		x = decision{call: x.call, plan: x.plan, runs: next}
		if err = d.run(ctx, x); err == nil {
			return nil
		}
		tried, failures = append(tried, next.kernel), append(failures, err)
	}
}
