// Package bench measures kernels over grids of problems: times, memory and rates, what dispatch's
// choices lose, and the profile of a machine. It reads and writes its results.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A Run measures kernels on problems.
type Run struct {
	Dispatch *dispatch.Dispatcher // over everything that this machine has; it makes no call
	inputs   input.Maker
	kernels  []flashkit.Kernel // that may be measured
	baseline []flashkit.Kernel // that is measured beside them
	gpu      *cuda.Backend     // nil without one
	Passes   []flashkit.Pass
	memories []string
	settings Settings
	order    *rand.Rand
	show     *terminal.Progress
	plan     plan
	Results  *Results
}

// A timedCase is a kernel on a pass of a problem.
type timedCase struct {
	problem flashkit.Problem
	kernel  flashkit.Kernel
	memory  string
	flops   float64                                      // of a call
	call    func(context.Context) (time.Duration, error) // one call, and what it took
	close   func() error
	extra   int64             // allocated by the first call
	rounds  [][]time.Duration // of timed calls
	done    bool              // it needs no more calls
}

// Measure measures the limits of the machine if asked, and then the problems, until ctx ends.
func (b *Run) Measure(ctx context.Context, problems []flashkit.Problem, limits bool, show *terminal.Progress) error {
	b.show = show
	load := machine.NewLoadMeter()
	if limits {
		b.show.Say("measuring what the machine does at most")
		types := typesOf(problems)
		device, err := machine.DeviceLimits(b.gpu, types)
		if err != nil {
			return err
		}
		b.Results.Limits = append(machine.HostLimits(types), device...)
	}
	b.plan.started = time.Now()
	err := b.run(ctx, problems)
	b.Results.Interrupted = err != nil
	b.Results.Load = load.Load()
	b.Results.Judge()
	return cmp.Or(ctx.Err(), err) // wherever it was interrupted
}

// run measures every problem. Results are complete for the problems that it has
// left behind when ctx ends or a kernel fails.
func (b *Run) run(ctx context.Context, problems []flashkit.Problem) error {
	for _, p := range problems {
		b.plan.add(b.expect(p))
	}
	for _, p := range problems {
		if err := b.measureProblem(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// choose returns the kernels to measure on a pass: all that fit, or those of each
// backend that predict the shortest time.
func (b *Run) choose(p flashkit.Problem, s flashkit.Pass) (list []flashkit.Kernel) {
	best := map[string]int{} // index in list, by backend
	for _, k := range slices.Concat(b.kernels, b.baseline) {
		if k.Pass != s || s == flashkit.PassBackward && !input.HasBackward(&p) || k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		i, found := best[BackendOf(k.Name)]
		switch {
		case b.settings.Kernels == "all" || !found:
			best[BackendOf(k.Name)] = len(list)
			list = append(list, k)
		case k.Cost(p.Ask(k.Pass)) < list[i].Cost(p.Ask(s)):
			list[i] = k
		}
	}
	return list
}

// expect predicts how long the cases of a problem take, and how many there are.
func (b *Run) expect(p flashkit.Problem) (t time.Duration, cases int) {
	for _, s := range b.Passes {
		for _, k := range b.choose(p, s) {
			for range b.memoriesOf(k) {
				t += b.expectCase(p, k)
				cases++
			}
		}
	}
	return t, cases
}

func (b *Run) expectCase(p flashkit.Problem, k flashkit.Kernel) time.Duration {
	return k.Cost(p.Ask(k.Pass)) + b.perCase()
}

func (b *Run) perCase() time.Duration {
	return time.Duration(b.settings.TimePerCase * 1e9)
}

// memoriesOf returns where the tensors of a kernel are to lie.
func (b *Run) memoriesOf(k flashkit.Kernel) (list []string) {
	for _, m := range b.memories {
		if m == machine.Host || b.gpu != nil && BackendOf(k.Name) == b.gpu.Name() {
			list = append(list, m)
		}
	}
	return list
}

// measureProblem measures all kernels of a problem: each warms up, and then they take
// turns.
func (b *Run) measureProblem(ctx context.Context, p flashkit.Problem) error {
	data, err := b.inputs.Make(ctx, p, b.backward())
	if err != nil {
		return err
	}
	defer data.Close()
	var cases []*timedCase
	defer func() {
		for _, c := range cases {
			c.close()
		}
	}()
	for _, s := range b.Passes {
		chosen := b.choose(p, s)
		if len(chosen) == 0 {
			b.skip(p, s)
		}
		for _, k := range chosen {
			for _, memory := range b.memoriesOf(k) {
				c, err := b.openCase(ctx, data, k, memory)
				if err == nil {
					cases = append(cases, c)
					err = b.warmUp(ctx, c)
				}
				if err = b.note(ctx, p, k, err); err != nil {
					b.keep(cases)
					return err
				}
			}
		}
	}
	runtime.GC() // of what making and warming up left, so that no call pays for it
	err = b.takeTurns(ctx, cases)
	b.keep(cases)
	return err
}

// note records the error of a kernel. It returns one only if nothing more is to
// be measured.
func (b *Run) note(ctx context.Context, p flashkit.Problem, k flashkit.Kernel, err error) error {
	if err != nil && ctx.Err() == nil {
		b.Results.Failures = append(b.Results.Failures, CaseError{p.String(), k.Pass.String(), k.Name, err.Error()})
	}
	return ctx.Err()
}

// skip records that no kernel takes a pass of a problem.
func (b *Run) skip(p flashkit.Problem, s flashkit.Pass) {
	var errs []error
	for _, k := range b.kernels {
		if k.Pass == s {
			errs = append(errs, fmt.Errorf("%s: %s", k.Name, k.Fits(p.Ask(k.Pass))))
		}
	}
	switch {
	case s == flashkit.PassBackward && !input.HasBackward(&p):
		errs = []error{errors.New("there is no backward pass")}
	case len(errs) == 0:
		errs = []error{fmt.Errorf("no kernel for the %s pass is selected", s)}
	}
	b.Results.Skipped = append(b.Results.Skipped, CaseError{Problem: p.String(), Pass: s.String(), Error: errors.Join(errs...).Error()})
}

// openCase prepares a case. A kernel on the host's memory gets a backend of its own,
// whose workspace nobody has used, so that what the first call allocates is what
// the kernel needs.
func (b *Run) openCase(ctx context.Context, data *input.Tensors, k flashkit.Kernel, memory string) (*timedCase, error) {
	if memory == machine.Device {
		return openDevice(ctx, data, b.gpu, k)
	}
	own, done, err := unused(ctx, k)
	if err != nil {
		return nil, err
	}
	c := &timedCase{problem: data.Problem, kernel: own, memory: memory, flops: data.Flops(own.Pass), close: done}
	c.call = func(ctx context.Context) (time.Duration, error) {
		return timed(func() error { return data.Call(ctx, c.kernel) })
	}
	return c, nil
}

// warmUp makes the kernel ready on a problem of one row, calls it once, and looks
// at what that allocates. A call of which MinCalls exceed the patience is timed as
// the only one.
func (b *Run) warmUp(ctx context.Context, c *timedCase) error {
	b.show.Part(b.plan.share(), fmt.Sprintf("%s %s, warming up", c.kernel.Name, c.problem), b.plan.left())
	if c.memory == machine.Host {
		if err := b.inputs.CallTiny(ctx, c.kernel, c.problem); err != nil {
			return err
		}
	}
	var first time.Duration
	bytes, err := allocated(func() (err error) {
		first, err = c.call(ctx)
		return err
	})
	if err != nil {
		c.done = true
		return err
	}
	c.extra = bytes
	b.plan.spend(c.kernel.Cost(c.problem.Ask(c.kernel.Pass)))
	if c.done = MinCalls*first > b.patience(); c.done {
		c.rounds = [][]time.Duration{{first}}
		b.plan.spend(b.perCase())
	}
	return nil
}

// patience returns the most time that a slow case gets for MinCalls calls.
func (b *Run) patience() time.Duration { return 10 * b.perCase() }

// short reports whether a case has fewer calls than a median needs, and time for more.
func (b *Run) short(c *timedCase) bool {
	calls, spent := 0, time.Duration(0)
	for _, times := range c.rounds {
		calls += len(times)
		for _, t := range times {
			spent += t
		}
	}
	return !c.done && calls < MinCalls && spent < b.patience()
}

// callsPerRound is the most calls of a case that a round times.
const callsPerRound = 10000

// takeTurns times the cases in rounds. Each round takes them in another order, so
// that what changes on the machine meanwhile hits all of them alike. Cases of too few
// calls get more rounds.
func (b *Run) takeTurns(ctx context.Context, cases []*timedCase) error {
	slice := b.perCase() / time.Duration(b.settings.Rounds)
	for round := 0; round < b.settings.Rounds || slices.ContainsFunc(cases, b.short); round++ {
		for _, i := range b.order.Perm(len(cases)) {
			c := cases[i]
			if c.done || round >= b.settings.Rounds && !b.short(c) {
				continue
			}
			b.show.Part(b.plan.share(), fmt.Sprintf("%s %s", c.kernel.Name, c.problem), b.plan.left())
			err := c.turn(ctx, slice)
			c.done = err != nil
			if err = b.note(ctx, c.problem, c.kernel, err); err != nil {
				return err
			}
			b.plan.spend(slice)
		}
	}
	return nil
}

// turn times calls for about the given time, at least one.
func (c *timedCase) turn(ctx context.Context, slice time.Duration) error {
	var times []time.Duration
	defer func() { c.rounds = append(c.rounds, times) }()
	for total := time.Duration(0); len(times) == 0 || total < slice && len(times) < callsPerRound; {
		t, err := c.call(ctx)
		if err != nil {
			return err
		}
		times = append(times, t)
		total += t
	}
	return nil
}

// keep adds the cases that have a timed call to the results.
func (b *Run) keep(cases []*timedCase) {
	for _, c := range cases {
		r, ok := newResult(c.problem, c.kernel, c.flops, c.rounds)
		if !ok {
			continue
		}
		r.Memory, r.ExtraBytes = c.memory, c.extra
		r.Device = DeviceBytesOf(c.problem, c.kernel)
		r.PeakBytes = int64(r.PeakOf(c.problem, c.kernel.Pass))
		if k, err := b.Dispatch.Pick(c.problem, c.kernel.Pass); err == nil {
			r.Chosen = k.Name == c.kernel.Name && c.memory == machine.Host
		}
		b.Results.Results = append(b.Results.Results, r)
	}
}

// A plan is how much there is to do, as predicted, and how much of it is done.
type plan struct {
	cases       int
	total, done time.Duration
	started     time.Time
}

func (l *plan) add(t time.Duration, cases int) {
	l.total += t
	l.cases += cases
}

func (l *plan) spend(t time.Duration) { l.done = min(l.total, l.done+t) }

// share returns the fraction that is done.
func (l *plan) share() float64 { return float64(l.done) / float64(max(1, l.total)) }

// left predicts the remaining time: as planned and, when there is something to
// learn from, as fast as it went so far.
func (l *plan) left() time.Duration {
	left := l.total - l.done
	if l.share() > .02 {
		left = time.Duration(float64(left) * float64(time.Since(l.started)) / float64(l.done))
	}
	return left
}
