package replay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A Report is the results of replayed traces. The JSON names are stable.
type Report struct {
	Format      int            `json:"format"`
	Interrupted bool           `json:"interrupted"`
	Machine     machine.Info   `json:"machine"`
	Mean        float64        `json:"geometric_mean"` // mean live regret of the traces
	WorstTrace  string         `json:"worst_trace,omitempty"`
	Worst       float64        `json:"worst_live_regret"` // of WorstTrace, the median of its runs
	WorstRun    worstRun       `json:"worst_run"`
	WorstSteady *lastingChoice `json:"worst_steady,omitempty"`
	Traces      []*TraceRuns   `json:"traces"`
	Failures    []traceError   `json:"failures,omitempty"`
}

// A worstRun is the run with the largest live regret. It is reported because medians hide rare
// events.
type worstRun struct {
	Trace  string  `json:"trace"`
	Regret float64 `json:"live_regret"`
}

// A traceError is a run that failed.
type traceError struct {
	Trace string `json:"trace"`
	Error string `json:"error"`
}

// A TraceRuns is the runs of a trace.
type TraceRuns struct {
	Trace       string         `json:"trace"`
	Procs       int            `json:"procs,omitempty"`
	Godebug     string         `json:"godebug,omitempty"`
	Calls       int            `json:"calls"`
	Regret      float64        `json:"live_regret"`       // median of the runs
	Worst       float64        `json:"worst_live_regret"` // maximum of the runs
	Raw         float64        `json:"raw_ratio"`         // median of the runs
	WorstCall   *lastingChoice `json:"worst_call,omitempty"`
	WorstSteady *lastingChoice `json:"worst_steady,omitempty"`
	Kernels     map[string]int `json:"kernels"` // calls of each kernel in all runs
	Runs        []*Result      `json:"runs"`
}

// A Result is a run of a trace in a fresh process.
type Result struct {
	Regret      float64        `json:"live_regret"`
	Raw         float64        `json:"raw_ratio"` // duration of all calls over the best kernels' time
	Seconds     float64        `json:"seconds"`   // duration of all calls
	Chosen      float64        `json:"chosen_seconds"`
	Best        float64        `json:"best_seconds"`
	Overhead    float64        `json:"overhead_seconds"` // dispatch's probes and learning
	WorstCall   *lastingChoice `json:"worst_call,omitempty"`
	WorstSteady *lastingChoice `json:"worst_steady,omitempty"`
	Groups      []*GroupResult `json:"groups"`
}

// A lastingChoice is a kernel that dispatch chose after the first firstCalls calls of a trace.
type lastingChoice struct {
	Trace   string  `json:"trace,omitempty"`
	Problem string  `json:"problem"`
	Pass    string  `json:"pass"`
	Kernel  string  `json:"kernel"`
	Best    string  `json:"best"`
	Calls   int     `json:"calls"` // after firstCalls; consecutive calls for a steady choice
	Ratio   float64 `json:"ratio"`
}

// A GroupResult is the result of a callGroup.
type GroupResult struct {
	Problem string         `json:"problem"`
	Pass    string         `json:"pass"`
	Calls   int            `json:"calls"`
	Seconds float64        `json:"seconds"` // duration of the calls
	First   float64        `json:"first_seconds"`
	Extra   float64        `json:"overhead_seconds"`
	Best    string         `json:"best"`
	Ratio   float64        `json:"ratio"`   // time of the choices over the best kernel's, by medians
	Kernels []KernelResult `json:"kernels"` // in order of calls in the trace, then of time
}

// A KernelResult is the result of one kernel of a group. The kernel ran in the trace, or only in
// the second phase.
type KernelResult struct {
	Kernel  string  `json:"kernel"`
	Calls   int     `json:"calls"`   // in the trace
	Seconds float64 `json:"seconds"` // median of the second phase's calls
	Timed   int     `json:"timed_calls"`
}

// Options are the parameters of Run.
type Options struct {
	Backend string // a backend, a kernel or auto
	Seed    uint64
	Runs    int // per trace
}

// Run replays the traces, each run in a fresh process.
func Run(ctx context.Context, traces []*Trace, where machine.Info, o Options, show *terminal.Progress) (*Report, error) {
	report := &Report{Format: bench.Format, Machine: where, Traces: []*TraceRuns{}}
	ended := report.replay(ctx, traces, o, show)
	runs := 0
	for _, x := range report.Traces {
		runs += len(x.Runs)
	}
	if report.Interrupted = ended != nil; report.Interrupted {
		ended = &bench.Unfinished{Done: fmt.Sprintf("%d of %d runs", runs, len(traces)*o.Runs), Err: ended}
	}
	if n := len(report.Failures); n > 0 && ended == nil {
		ended = fmt.Errorf("%d runs failed, the first one was of %s: %s", n, report.Failures[0].Trace, report.Failures[0].Error)
	}
	report.sum()
	return report, ended
}

// replay makes one run of every trace, then a second run of every trace, and so on: changes on the
// machine affect all traces alike. A failed run does not end the other runs.
func (report *Report) replay(ctx context.Context, traces []*Trace, o Options, show *terminal.Progress) error {
	for _, t := range traces {
		report.Traces = append(report.Traces, &TraceRuns{Trace: t.name, Procs: t.procs, Godebug: t.godebug, Calls: t.calls, Kernels: map[string]int{}})
	}
	started, all := time.Now(), len(traces)*o.Runs
	for i := range all {
		t, x := traces[i%len(traces)], report.Traces[i%len(traces)]
		left := time.Duration(0)
		if i > 0 {
			left = time.Since(started) / time.Duration(i) * time.Duration(all-i)
		}
		show.Part(float64(i)/float64(all), fmt.Sprintf("%s, run %d of %d", t.name, i/len(traces)+1, o.Runs), left)
		run, err := replay(ctx, t, o.Backend, o.Seed+uint64(i))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			report.Failures = append(report.Failures, traceError{t.name, err.Error()})
		default:
			x.add(run)
		}
	}
	return nil
}

func (l *liveRun) result() *Result {
	r := new(Result)
	for _, g := range l.groups {
		took, best := g.sums()
		x := &GroupResult{Problem: g.name(), Pass: g.step.pass.String(), Calls: g.calls, Seconds: g.seconds, First: g.first.Seconds(),
			Extra: g.overhead(), Best: g.best().name, Ratio: took / best}
		for _, k := range g.kernels {
			x.Kernels = append(x.Kernels, KernelResult{k.name, k.ran, k.seconds(), len(k.times)})
			c := &lastingChoice{Problem: x.Problem, Pass: x.Pass, Kernel: k.name, Best: x.Best, Calls: k.late, Ratio: g.ratio(k)}
			if k.late > 0 {
				r.WorstCall = worse(r.WorstCall, c)
			}
			if k.row >= steadyCalls {
				steady := *c
				steady.Calls = k.row
				r.WorstSteady = worse(r.WorstSteady, &steady)
			}
		}
		slices.SortStableFunc(x.Kernels, func(a, b KernelResult) int {
			return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Seconds, b.Seconds))
		})
		r.Groups = append(r.Groups, x)
		r.Seconds, r.Chosen, r.Best, r.Overhead = r.Seconds+g.seconds, r.Chosen+took, r.Best+best, r.Overhead+x.Extra
	}
	r.Regret, r.Raw = (r.Chosen+r.Overhead)/r.Best, r.Seconds/r.Best
	return r
}

// A choice is steady if dispatch makes it in at least steadyCalls consecutive calls.
const steadyCalls = 5

// worse returns the choice with the larger ratio. A nil choice has the smallest ratio.
func worse(a, b *lastingChoice) *lastingChoice {
	if a == nil || b != nil && b.Ratio > a.Ratio {
		return b
	}
	return a
}

func (x *TraceRuns) add(r *Result) {
	x.Runs = append(x.Runs, r)
	var regrets, raws []float64
	for _, r := range x.Runs {
		regrets, raws = append(regrets, r.Regret), append(raws, r.Raw)
	}
	slices.Sort(regrets)
	slices.Sort(raws)
	x.Regret, x.Worst, x.Raw = bench.Quantile(regrets, .5), regrets[len(regrets)-1], bench.Quantile(raws, .5)
	x.WorstCall, x.WorstSteady = worse(x.WorstCall, r.WorstCall), worse(x.WorstSteady, r.WorstSteady)
	for _, g := range r.Groups {
		for _, k := range g.Kernels {
			if k.Calls > 0 {
				x.Kernels[k.Kernel] += k.Calls
			}
		}
	}
}

// sum summarizes the traces that have runs.
func (r *Report) sum() {
	r.Traces = slices.DeleteFunc(r.Traces, func(x *TraceRuns) bool { return len(x.Runs) == 0 })
	var regrets []float64
	for _, x := range r.Traces {
		regrets = append(regrets, x.Regret)
		if x.Regret > r.Worst {
			r.Worst, r.WorstTrace = x.Regret, x.Trace
		}
		if x.Worst > r.WorstRun.Regret {
			r.WorstRun = worstRun{x.Trace, x.Worst}
		}
		if x.WorstSteady != nil {
			c := *x.WorstSteady
			c.Trace = x.Trace
			r.WorstSteady = worse(r.WorstSteady, &c)
		}
	}
	if len(regrets) > 0 {
		r.Mean = bench.GeometricMean(regrets)
	}
}
