// Package bench measures kernels over grids of problems: times, memory and rates, the regret of
// dispatch's choices, and the machine's profile. It reads and writes results.
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
	Dispatch *dispatch.Dispatcher // has all kernels of the machine; the bench itself calls kernels directly
	inputs   input.Maker
	kernels  []flashkit.Kernel // kernels that may be measured
	baseline []flashkit.Kernel // kernels of the baseline
	gpu      *cuda.Backend     // nil without a GPU
	Passes   []flashkit.Pass
	memories []string
	settings Settings
	order    *rand.Rand
	show     *terminal.Progress
	plan     plan
	Results  *Results
}

type timedCase struct {
	problem flashkit.Problem
	kernel  flashkit.Kernel
	memory  string
	flops   float64                                      // per call
	call    func(context.Context) (time.Duration, error) // makes a call and returns its time
	close   func() error
	extra   int64             // bytes that the first call allocated
	rounds  [][]time.Duration // of timed calls
	done    bool              // no more calls needed
}

// Measure measures the machine's limits if requested, then the problems, until ctx ends.
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
	return cmp.Or(ctx.Err(), err) // ctx's error, even if a call failed because of it
}

// run measures every problem. If it returns an error, the results of earlier problems are complete.
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

// choose returns the kernels to measure for a pass. If all kernels are requested, these are the
// kernels that fit. Otherwise they are each backend's fitting kernel with the shortest prediction.
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

// expect predicts the duration of a problem's cases. It also returns the number of these cases.
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

// memoriesOf returns the memories (host or device) that hold the tensors when k is measured.
func (b *Run) memoriesOf(k flashkit.Kernel) (list []string) {
	for _, m := range b.memories {
		if m == machine.Host || b.gpu != nil && BackendOf(k.Name) == b.gpu.Name() {
			list = append(list, m)
		}
	}
	return list
}

// measureProblem measures all kernels of a problem. First each kernel warms up, then the kernels
// take turns.
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
	runtime.GC() // collect the garbage of setup and warm-up before timed calls
	err = b.takeTurns(ctx, cases)
	b.keep(cases)
	return err
}

// note records the error of a kernel. It returns only the error of ctx, which ends the bench.
func (b *Run) note(ctx context.Context, p flashkit.Problem, k flashkit.Kernel, err error) error {
	if err != nil && ctx.Err() == nil {
		b.Results.Failures = append(b.Results.Failures, CaseError{p.String(), k.Pass.String(), k.Name, err.Error()})
	}
	return ctx.Err()
}

// skip records that no kernel fits a pass of a problem.
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

// openCase prepares a case. For tensors in host memory, it takes the kernel from a new backend. The
// workspace of a new backend is empty, so that the first call allocates all the memory it needs.
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

// warmUp calls the kernel on a problem of one row, if the tensors are in host memory. It then calls
// the kernel once on the case's problem and records the bytes that this call allocates. If MinCalls
// such calls would take longer than b.patience(), this call is the case's only timed call.
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
	if c.done = MinCalls*first > b.patience(); c.done && first < b.patience() {
		again, err := c.call(ctx)
		if err != nil {
			return err
		}
		first = min(first, again)
		c.done = MinCalls*first > b.patience()
	}
	if c.done {
		c.rounds = [][]time.Duration{{first}}
		b.plan.spend(b.perCase())
	}
	return nil
}

// patience returns the time limit for MinCalls calls of a slow case.
func (b *Run) patience() time.Duration { return 10 * b.perCase() }

// short reports whether a case has fewer than MinCalls calls and has time left for more calls.
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

// callsPerRound is the maximum number of a case's calls per round.
const callsPerRound = 10000

// takeTurns times the cases in rounds, each in another order, so that changes on the machine affect
// all cases alike. Cases for which short is true then get extra rounds.
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

// turn times at least one call, and at most callsPerRound calls. It stops after about the given
// time.
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

// A plan is the predicted duration of all cases, and the completed part.
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

func (l *plan) share() float64 { return float64(l.done) / float64(max(1, l.total)) }

// left predicts the remaining time. At first this is the rest of the planned time. After 2 % of the
// plan, left scales this rest by the measured duration of the completed part divided by the planned
// duration of this part.
func (l *plan) left() time.Duration {
	left := l.total - l.done
	if l.share() > .02 {
		left = time.Duration(float64(left) * float64(time.Since(l.started)) / float64(l.done))
	}
	return left
}
