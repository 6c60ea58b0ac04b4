package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/replay"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// notWithTraces are the flags that conflict with --trace.
var notWithTraces = append([]string{"problem", "pass", "kernels", "memory", "baseline", "time-per-case", "rounds", "compare", "out", "csv", "benchstat"}, gridNames...)

// checkLive returns an error if a flag conflicts with --trace, or is valid only with --trace.
func (f *benchFlags) checkLive(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case changed("runs") && len(f.traces) == 0:
		return fmt.Errorf("--runs %d: goes with --trace", f.runs)
	case f.runs < 1 || f.runs > bench.Limit:
		return fmt.Errorf("--runs %d: must be from 1 to %d", f.runs, bench.Limit)
	case len(f.traces) == 0:
		return nil
	}
	for _, name := range notWithTraces {
		if changed(name) {
			return fmt.Errorf("--%s: does not go with --trace: a trace says what is called", name)
		}
	}
	return nil
}

// live replays the traces of --trace. Each run of a trace is a new process.
func (f *benchFlags) live(cmd *cobra.Command) error {
	traces, err := replay.Read(f.traces)
	if err != nil {
		return err
	}
	where, err := f.machine(cmd)
	if err != nil {
		return err
	}
	show := terminal.NewProgress(cmd.ErrOrStderr())
	report, ended := replay.Run(cmd.Context(), traces, where, replay.Options{Backend: backendChoice(f.backend), Seed: f.seed, Runs: f.runs}, show)
	show.Done()
	write := report.WriteGroups
	if f.json {
		write = func(w io.Writer) error { return json.NewEncoder(w).Encode(report) }
	}
	return failed(errors.Join(write(cmd.OutOrStdout()), ended))
}

// machine returns a description of the machine. It closes all devices before it returns, because
// the processes of the replay open the same devices.
func (f *benchFlags) machine(cmd *cobra.Command) (machine.Info, error) {
	d, err := openDispatch(cmd, f.backend)
	if err != nil {
		return machine.Info{}, err
	}
	defer d.Close()
	gpu := bench.OpenGPU(cmd.Context(), d)
	if gpu == nil {
		return machine.Describe(d, nil), nil
	}
	defer gpu.Close()
	return machine.Describe(d, gpu), nil
}
