package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/internal/replay"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

type benchFlags struct {
	grid        gridFlags
	pass        passList
	backend     string
	kernels     string
	memory      string
	baseline    string
	timePerCase time.Duration
	rounds      int
	seed        uint64
	limits      bool
	traces      []string
	runs        int

	compare   string
	out       string
	json      bool
	csv       bool
	benchstat bool
}

func newBench() *cobra.Command {
	f := benchFlags{pass: passList{flashkit.PassForward, flashkit.PassBackward}}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure kernels over a grid of problems",
		Long: `Bench measures kernels on random normal tensors, for every combination of the
lists given, or for problems given by name. It prints medians, how far apart the
fast and the slow calls are, rates beside what the machine does at most, and
memory; * marks the kernel that dispatch runs, ? a median in doubt: of fewer than
five calls, or with quartiles more than a fifth of it apart.

Each kernel warms up first. Then the kernels of a problem take turns, in rounds
and in another order each time, so that what changes on the machine meanwhile
hits all of them alike. Ctrl-C ends the measurement and prints what is there.

With --baseline naive it also measures attention as its formula reads, which
dispatch never runs: one product after the other over all heads, each with its
matrix of rows times keys stored whole, in float32. Forward these are S and P,
backward S, P, dP and dS. It is plain Go like simd/fwd_generic, as carefully
tiled, on all cores, and computes nothing that the mask hides: what sets it
apart are the matrices. The column peak then says what a call holds at most, its
tensors included. Problems whose matrices do not fit into free memory are
refused: measure these without it, and flashrun report shows both files as one.

With --trace it replays the calls of a program instead, with the dispatcher that
every program gets, and says which kernels ran and what others would have taken.`,
		Example: `  flashrun bench
  flashrun bench --seq 128:16384:x2 --head-dim 64,128 --causal=both --dtype f32,bf16 --pass fwd,bwd
  flashrun bench --heads 32 --kv-heads 8 --q-len 1 --seq 1024:131072:x4 --pass fwd
  flashrun bench --seq 512 --features softcap30-alibi --kernels all
  flashrun bench --problem b1-h12-g12-n121-m121-d32-f32 --kernels all --backend simd,wasm
  flashrun bench --seq 256:4096:x2 --baseline naive
  flashrun bench --out new.json --compare old.json
  flashrun bench --trace mine.trace
  flashrun bench --benchstat >new.txt && benchstat old.txt new.txt`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.grid.add(cmd)
	flags := cmd.Flags()
	addPassFlag(cmd, &f.pass, "a `list` of passes: fwd, bwd")
	flags.StringVar(&f.backend, "backend", "", "a `list` of backends and kernels: all, simd, wasm, cuda, simd/fwd_generic (default FLASHKIT_BACKEND, else all)")
	flags.StringVar(&f.kernels, "kernels", "chosen", "`which` kernels: chosen, that each backend predicts to be its fastest; or all that fit")
	flags.StringVar(&f.memory, "memory", "host", "a `list` of where tensors lie: host and, for the GPU's kernels alone, device")
	flags.StringVar(&f.baseline, "baseline", "", "also measure this `baseline`: naive, attention that stores its matrices")
	flags.DurationVar(&f.timePerCase, "time-per-case", 500*time.Millisecond, "measure a kernel on a problem for about this long")
	flags.IntVar(&f.rounds, "rounds", 5, "in so many turns")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the input, of the order and of random problems")
	flags.BoolVar(&f.limits, "limits", true, "also measure what the machine does at most")
	flags.StringArrayVar(&f.traces, "trace", nil, "replay the calls in this `file`, or the built-in trace of this name, in a fresh process; repeat for more; builtin for all built-in ones")
	flags.IntVar(&f.runs, "runs", 1, "replay each trace in so many processes")
	f.addOutput(cmd)
	completeLists(cmd)
	cmd.RegisterFlagCompletionFunc("trace", cobra.FixedCompletions(append(replay.BuiltinNames(), replay.Builtin), cobra.ShellCompDirectiveDefault))
	return cmd
}

// addOutput adds the flags for the output format and the output files.
func (f *benchFlags) addOutput(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.compare, "compare", "", "also print ratios to the results in this JSON `file`")
	flags.StringVar(&f.out, "out", "", "also write the JSON to this `file`")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	flags.BoolVar(&f.csv, "csv", false, "print comma-separated values")
	flags.BoolVar(&f.benchstat, "benchstat", false, "print the format of Go benchmarks, a line for each round")
}

// completeLists adds shell completion for the last element of a list flag's value.
func completeLists(cmd *cobra.Command) {
	for name, values := range map[string][]string{"dtype": input.TypeNames, "memory": {"host", "device"}, "baseline": {bench.Naive},
		"kernels": {"chosen", "all"}, "backend": nil} {
		cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			if name == "backend" {
				d := dispatch.All(cmd.Context())
				defer d.Close()
				values = append([]string{"all"}, d.Choices()...)
			}
			before := typed[:strings.LastIndex(typed, ",")+1]
			var list []string
			for _, v := range values {
				list = append(list, before+v)
			}
			return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		})
	}
}

func (f *benchFlags) run(cmd *cobra.Command) error {
	if err := f.checkLive(cmd); err != nil {
		return err
	}
	if len(f.traces) > 0 {
		return f.live(cmd)
	}
	b, problems, err := f.prepare(cmd)
	if err != nil {
		return err
	}
	var before *bench.Results
	if f.compare != "" {
		if before, err = bench.ReadFile(f.compare); err != nil {
			return fmt.Errorf("--compare: %w", err)
		}
	}
	if err := b.Open(cmd.Context(), backendChoice(f.backend)); err != nil {
		return err
	}
	defer b.Close()
	warnOfProfile(cmd, b.Dispatch)
	if choice := backendChoice(f.backend); choice == "auto" || choice == "all" {
		if err := missingDevice(cmd, b.Dispatch); err != nil {
			return err
		}
	}
	for _, p := range problems {
		if err := b.Affordable(p); err != nil {
			return fmt.Errorf("%s: %w", f.grid.origin(p), err)
		}
	}
	if err := b.Possible(problems); err != nil {
		return failed(err)
	}
	var file *outfile.File
	if f.out != "" {
		if file, err = createOutput(f.out, resultsKind, slices.DeleteFunc([]string{f.compare}, func(s string) bool { return s == "" })); err != nil {
			return err
		}
		defer file.Discard()
	}
	show := terminal.NewProgress(cmd.ErrOrStderr())
	ended := b.Measure(cmd.Context(), problems, f.limits, show)
	show.Done()
	b.Remember()
	if before != nil {
		b.Results.Comparison = bench.Compare(f.compare, before, b.Results)
	}
	if file != nil {
		err = commit(file, b.Results.WriteJSON)
	}
	return failed(errors.Join(err, f.print(cmd.OutOrStdout(), b.Results), b.Verdict(ended)))
}

// prepare checks all flags before any device or file is opened. It returns the run to measure and
// its problems.
func (f *benchFlags) prepare(cmd *cobra.Command) (*bench.Run, []flashkit.Problem, error) {
	problems, err := f.grid.grid(cmd, f.seed)
	if err != nil {
		return nil, nil, err
	}
	memories := strings.Split(f.memory, ",")
	for _, m := range memories {
		if m != machine.Host && m != machine.Device {
			return nil, nil, fmt.Errorf("--memory %q: must be a list of host and device", f.memory)
		}
	}
	formats := f.formats()
	switch {
	case len(formats) > 1:
		err = fmt.Errorf("--%s and --%s exclude each other", formats[0], formats[1])
	case f.kernels != "all" && f.kernels != "chosen":
		err = fmt.Errorf("--kernels %q: must be chosen or all", f.kernels)
	case f.baseline != "" && f.baseline != bench.Naive:
		err = fmt.Errorf("--baseline %q: must be %s", f.baseline, bench.Naive)
	case f.timePerCase <= 0:
		err = fmt.Errorf("--time-per-case %v: must be positive", f.timePerCase)
	case f.rounds < 1:
		err = fmt.Errorf("--rounds %d: must be at least 1", f.rounds)
	case f.compare != "" && (f.csv || f.benchstat):
		err = fmt.Errorf("--compare %s: goes with the table or with --json", f.compare)
	}
	how := bench.Settings{Kernels: f.kernels, Rounds: f.rounds, TimePerCase: f.timePerCase.Seconds(), Seed: f.seed}
	return bench.New(how, f.pass, memories, f.baseline != ""), problems, err
}

// formats returns the names of the output format flags that are set.
func (f *benchFlags) formats() (list []string) {
	for _, x := range []struct {
		name string
		set  bool
	}{{"json", f.json}, {"csv", f.csv}, {"benchstat", f.benchstat}} {
		if x.set {
			list = append(list, x.name)
		}
	}
	return list
}

func (f *benchFlags) print(w io.Writer, r *bench.Results) error {
	switch {
	case f.json:
		return r.WriteJSON(w)
	case f.csv:
		return r.WriteCSV(w)
	case f.benchstat:
		return r.WriteBenchstat(w)
	}
	return r.WriteTable(w)
}
