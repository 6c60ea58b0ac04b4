// Package dispatch chooses the kernel that runs a problem: of all kernels that support the problem,
// the one with the shortest predicted time. It explains why it rejected the other kernels, and
// never falls back silently.
//
// A kernel predicts its own time. A Dispatcher multiplies this prediction by a ratio of measured to
// predicted time. The ratio comes from a profile on disk, or from short probes that time several
// kernels in turn. The times of ordinary calls do not affect choices. The measurements kept in
// memory are bounded in size and read without locks. docs/design.md explains the model.
package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Dispatcher holds backends and chooses among their kernels. It is safe for concurrent use. The
// With methods return modified copies, which share the backends and their measurements.
type Dispatcher struct {
	backends []flashkit.Backend
	memory   *memory
	admitted []bool // by kernel: the choice admits it
	id       uint64 // index of choice in memory.chosen
	missing  []Missing
	unopened []string // backends that were not requested
	opened   string   // the names passed to Open, joined
	choice   choice
	failover func(Failover)
	observer func(Ran)
	frozen   bool
	pairing  pairing
	machine  machine

	profileErr error
}

// Missing is a backend that this machine cannot run, and the reason.
type Missing struct {
	Backend string // the backend's name, such as "cuda"
	Err     error  // the reason; wraps flashkit.ErrUnavailable
}

// New returns a Dispatcher over the given backends. It has no measurements, only the kernels' own
// predictions. Of kernels with equal predictions, the first wins.
func New(backends ...flashkit.Backend) *Dispatcher {
	d := &Dispatcher{backends: slices.Clone(backends), machine: thisMachine(backends)}
	d.setMemory(newMemory(backends))
	return d
}

func (d *Dispatcher) setMemory(m *memory) {
	d.memory, d.admitted = m, make([]bool, len(m.kernels))
	for i := range m.kernels {
		d.admitted[i] = d.choice.admits(&m.kernels[i])
	}
	d.id = m.choiceNumber(d.choice)
}

// Kernels returns the kernels that d may choose, in the order of the backends: all kernels, or the
// kernels that a name passed to With admits. Kernels that this machine cannot run are included. The
// returned kernels' Cost is dispatch's prediction, not the kernel's own.
func (d *Dispatcher) Kernels() (list []flashkit.Kernel) {
	for i, k := range d.memory.kernels {
		if d.admitted[i] {
			list = append(list, k)
		}
	}
	return list
}

// Backends returns the open backends of d in order. Close closes them.
func (d *Dispatcher) Backends() []flashkit.Backend { return slices.Clone(d.backends) }

// Missing returns the requested backends that this machine cannot run, with their reasons.
func (d *Dispatcher) Missing() []Missing { return slices.Clone(d.missing) }

// Close closes every backend, even if some of them fail to close, and joins the errors. No method
// of d or of its copies may be running, and none may be called afterwards.
func (d *Dispatcher) Close() error {
	var errs []error
	for _, b := range d.backends {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// Pick returns the kernel that Backward, or Forward without Args.LSE, would run if no probe came
// first. PickWithLSE does the same for Forward with Args.LSE. The kernel's Cost is dispatch's
// prediction. The error is a *flashkit.ProblemError if p or s is invalid. If no kernel supports p,
// the error joins the reasons of all kernels and matches errors.ErrUnsupported.
func (d *Dispatcher) Pick(p flashkit.Problem, s flashkit.Pass) (flashkit.Kernel, error) {
	return d.pick(p, s, false)
}

// PickWithLSE returns the kernel that Forward with Args.LSE would run if no probe came first. It
// returns the same errors as Pick.
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

// valid returns the *flashkit.ProblemError of an invalid problem or pass. It returns nil if p and s
// are valid.
func valid(p flashkit.Problem, s flashkit.Pass) error {
	if err := p.Validate(); err != nil {
		return err
	}
	return s.Validate()
}

// A decision is the kernel chosen for a call, with the call's plan and the duration of the probe.
type decision struct {
	call   *flashkit.Call
	plan   *plan
	runs   *candidate
	probed time.Duration // duration of the probe before the call, 0 without one
}

// choose selects the kernel of a call. It first runs a probe if the calls so far justify the
// probe's cost.
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

// A Ran reports one call of a kernel, successful or failed.
type Ran struct {
	Problem flashkit.Problem // the problem that the caller passed
	Pass    flashkit.Pass    // of the call
	Kernel  string           // full name, such as "simd/fwd_avx512"
	Took    time.Duration    // duration of the call, without the probe
	Probed  time.Duration    // duration of the probe before the call, 0 without one
	Err     error            // the kernel's error, nil on success
}

// WithObserver returns a Dispatcher that calls report after every kernel call, with the kernel and
// the duration. report may be called concurrently. Forward and Backward wait until report returns.
// A nil report turns the reports off.
func (d *Dispatcher) WithObserver(report func(Ran)) *Dispatcher {
	c := *d
	c.observer = report
	return &c
}

func (d *Dispatcher) run(ctx context.Context, x decision) error {
	k := &d.memory.kernels[x.runs.kernel]
	if d.frozen && d.observer == nil {
		return k.Do(ctx, x.call)
	}
	p, start := x.call.Problem, time.Now() // not x.plan.Problem, whose KVLen may be rounded up
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

// Forward runs the forward pass on Pick's kernel, after a probe if one is due. With Args.LSE,
// Forward prefers a kernel that sums scores in the same order as Backward's kernel: see Paired and
// Unpaired. It returns the errors of Pick and of flashkit.Kernel.Compute.
func (d *Dispatcher) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return d.do(ctx, p, flashkit.PassForward, args)
}

// Backward runs the backward pass on Pick's kernel, after a probe if one is due. It reads the O and
// LSE that Forward wrote. It returns the errors of Pick and of flashkit.Kernel.Compute.
func (d *Dispatcher) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return d.do(ctx, p, flashkit.PassBackward, args)
}

// calls recycles the Call of each pass, so that dispatch does not allocate.
var calls = sync.Pool{New: func() any { return new(flashkit.Call) }}

// do runs a pass on the fastest kernel. If this kernel fails and failover is on, do tries the next
// fastest kernel.
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

// A Failover reports that a kernel failed and that another kernel runs instead.
type Failover struct {
	Problem flashkit.Problem // of the call
	Failed  string           // the kernel that failed
	Err     error            // the failed kernel's error
	Next    string           // the kernel that runs instead
}

// WithFailover returns a Dispatcher that calls report and runs the next best kernel if a kernel
// fails. Without failover, Forward and Backward return the failure unchanged. Failover never
// applies if With restricted the kernels, if the error is a *flashkit.ProblemError, or if ctx is
// done. Nor does it apply with Problem.Carry: the failed kernel may have overwritten the O and LSE
// that the call continues. report may be called concurrently; nil turns failover off.
func (d *Dispatcher) WithFailover(report func(Failover)) *Dispatcher {
	c := *d
	c.failover = report
	return &c
}

func (d *Dispatcher) mayFailOver(ctx context.Context, err error) bool {
	var wrong *flashkit.ProblemError
	return d.failover != nil && d.choice.isAuto() && ctx.Err() == nil && !errors.As(err, &wrong)
}

// retry runs the next best kernels, one after the other, after x.runs failed with err. It ends with
// the first success. If all kernels fail, it returns all failures.
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
