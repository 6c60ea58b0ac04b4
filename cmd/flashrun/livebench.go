package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// What --regret may be.
const (
	regretChoices = "choices"
	regretLive    = "live"
)

// plays reports whether traces are to be replayed.
func (f *benchFlags) plays() bool { return f.regrets == regretLive || len(f.traces) > 0 }

// notWithTraces are the flags that say nothing of traces.
var notWithTraces = append([]string{"problem", "pass", "kernels", "memory", "baseline", "time-per-case", "rounds", "compare", "out", "csv", "benchstat"}, gridNames...)

// checkLive refuses flags that do not go together.
func (f *benchFlags) checkLive(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case changed("regret") && f.regrets != regretChoices && f.regrets != regretLive:
		return fmt.Errorf("--regret=%s: must be choices or live", f.regrets)
	case f.regrets == regretChoices && len(f.traces) > 0:
		return fmt.Errorf("--trace %s: goes with --regret=live or without --regret", f.traces[0])
	case changed("runs") && !f.plays():
		return fmt.Errorf("--runs %d: goes with --regret=live or --trace", f.runs)
	case f.runs < 1 || f.runs > gridLimit:
		return fmt.Errorf("--runs %d: must be from 1 to %d", f.runs, gridLimit)
	case !f.plays():
		return nil
	}
	for _, name := range notWithTraces {
		if changed(name) {
			return fmt.Errorf("--%s: does not go with --trace and --regret=live: a trace says what is called", name)
		}
	}
	if !changed("runs") && f.regrets != regretLive {
		f.runs = 1
	}
	return nil
}

// readTraces returns the traces that --trace names, or the built-in ones.
func (f *benchFlags) readTraces() (list []*callTrace, err error) {
	names := f.traces
	if len(names) == 0 {
		names = []string{builtinTraces}
	}
	if i := slices.Index(names, builtinTraces); i >= 0 {
		names = slices.Concat(names[:i], builtinNames(), names[i+1:])
	}
	for _, name := range names {
		t, err := readTrace(name)
		if err != nil {
			return nil, fmt.Errorf("--trace %s: %w", name, err)
		}
		if free := freeMemory(); t.bytes() > free/2 {
			return nil, fmt.Errorf("--trace %s: its tensors take %s, and this machine has %s free", name, formatBytes(t.bytes()), formatBytes(free))
		}
		list = append(list, t)
	}
	return list, nil
}

// live replays the traces, each run in a process of its own.
func (f *benchFlags) live(cmd *cobra.Command) error {
	traces, err := f.readTraces()
	if err != nil {
		return err
	}
	report := &liveReport{Format: resultsFormat, Traces: []*liveTrace{}}
	if report.Machine, err = f.machine(cmd); err != nil {
		return err
	}
	show := newProgress(cmd.ErrOrStderr())
	defer show.done()
	ended := f.replayAll(cmd.Context(), traces, report, show)
	show.done()
	runs := 0
	for _, x := range report.Traces {
		runs += len(x.Runs)
	}
	if report.Interrupted = ended != nil; report.Interrupted {
		ended = fmt.Errorf("the measurement ended after %d of %d runs: %w", runs, len(traces)*f.runs, ended)
	}
	if n := len(report.Failures); n > 0 && ended == nil {
		ended = fmt.Errorf("%d runs failed, the first one was of %s: %s", n, report.Failures[0].Trace, report.Failures[0].Error)
	}
	report.sum()
	write := report.writeTable
	if f.regrets != regretLive {
		write = report.writeGroups
	}
	if f.json {
		write = func(w io.Writer) error { return json.NewEncoder(w).Encode(report) }
	}
	return failed(errors.Join(write(cmd.OutOrStdout()), ended))
}

// machine describes where the traces run. What it opens for that is closed again,
// so that the processes of the runs have the machine for themselves.
func (f *benchFlags) machine(cmd *cobra.Command) (machine, error) {
	d, err := openDispatch(cmd, f.backend)
	if err != nil {
		return machine{}, err
	}
	defer d.Close()
	gpu := besideDispatch(cmd.Context(), d)
	if gpu == nil {
		return describeMachine(d, nil), nil
	}
	defer gpu.Close()
	return describeMachine(d, gpu), nil
}

// replayAll runs every trace, and then every one again, so that what changes on the
// machine meanwhile hits all alike. A run that fails does not end the others.
func (f *benchFlags) replayAll(ctx context.Context, traces []*callTrace, report *liveReport, show *progress) error {
	for _, t := range traces {
		report.Traces = append(report.Traces, &liveTrace{Trace: t.name, Procs: t.procs, Godebug: t.godebug, Calls: t.calls, Kernels: map[string]int{}})
	}
	started, all := time.Now(), len(traces)*f.runs
	for i := range all {
		t, x := traces[i%len(traces)], report.Traces[i%len(traces)]
		left := time.Duration(0)
		if i > 0 {
			left = time.Since(started) / time.Duration(i) * time.Duration(all-i)
		}
		show.part(float64(i)/float64(all), fmt.Sprintf("%s, run %d of %d", t.name, i/len(traces)+1, f.runs), left)
		run, err := replay(ctx, t, f.backend, f.seed+uint64(i))
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
