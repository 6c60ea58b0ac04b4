// Regret measures dispatch's choices on problems or, with -live, in the calls of programs. Regret
// is the time of the chosen kernels divided by the time of the fastest kernels.
//
//	go run ./internal/house/regret
//	go run ./internal/house/regret -random 100 -seed 7
//	go run ./internal/house/regret -live -trace layers
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/replay"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		os.Exit(130)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err) // package replay parses this line of a child process
		os.Exit(1)
	}
}

// execute runs the command, or a process of package replay: replay.Serve or replay.Burn.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	switch strings.Join(args, " ") {
	case "replay":
		return replay.Serve(ctx, stdin, stdout)
	case "burn":
		return replay.Burn(ctx, stdin, stdout)
	}
	f, err := parse(args, stderr)
	if err != nil {
		return err
	}
	show := terminal.NewProgress(stderr)
	defer show.Done()
	if f.live {
		return f.replay(ctx, show, stdout)
	}
	return f.race(ctx, show, stdout)
}

type options struct {
	problems, traces names
	backend, pass    string
	random, runs     int
	seed             uint64
	timePerCase      time.Duration
	live, json       bool
}

// names is the value of a repeatable flag.
type names []string

func (n *names) String() string { return strings.Join(*n, ",") }

func (n *names) Set(s string) error {
	*n = append(*n, s)
	return nil
}

func parse(args []string, stderr io.Writer) (*options, error) {
	f, flags := new(options), flag.NewFlagSet("regret", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Var(&f.problems, "problem", "measure the problem of this `name` in place of the grid; repeat for more")
	flags.IntVar(&f.random, "random", 0, "measure this `number` of random problems in place of the grid")
	flags.StringVar(&f.pass, "pass", "fwd,bwd", "passes of -problem and -random: fwd, bwd or fwd,bwd")
	flags.StringVar(&f.backend, "backend", "", "a `list` of backends and kernels to choose from (default FLASHKIT_BACKEND, else all); one with -live")
	flags.Uint64Var(&f.seed, "seed", 1, "of inputs, of the order and of random problems")
	flags.DurationVar(&f.timePerCase, "time-per-case", bench.RegretTime, "measure a kernel on a problem for about this long")
	flags.BoolVar(&f.live, "live", false, "replay traces of programs, each run in a fresh process")
	flags.Var(&f.traces, "trace", "with -live, the trace in this `file` or the built-in one of this name; repeat for more (default all built-in ones)")
	flags.IntVar(&f.runs, "runs", 5, "with -live, replay each trace this `number` of times")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	err := flags.Parse(args)
	f.backend = cmp.Or(f.backend, os.Getenv("FLASHKIT_BACKEND"), "auto")
	switch {
	case err != nil:
		return nil, err
	case flags.NArg() > 0:
		return nil, fmt.Errorf("argument %q: regret takes flags alone", flags.Arg(0))
	case f.random < 0 || f.random > bench.Limit:
		return nil, fmt.Errorf("-random %d: must be a number up to %d", f.random, bench.Limit)
	case f.random > 0 && len(f.problems) > 0 || f.live && (f.random > 0 || len(f.problems) > 0):
		return nil, errors.New("-problem, -random and -live exclude each other")
	case len(f.traces) > 0 && !f.live:
		return nil, fmt.Errorf("-trace %s: goes with -live", f.traces[0])
	case f.runs < 1 || f.timePerCase <= 0:
		return nil, fmt.Errorf("-runs %d, -time-per-case %v: must be positive", f.runs, f.timePerCase)
	}
	return f, nil
}

// heats returns the heats of the given problems, or of the grid if no problem is given.
func (f *options) heats() ([]bench.Heat, error) {
	passes, ok := map[string][]flashkit.Pass{"fwd": {flashkit.PassForward}, "bwd": {flashkit.PassBackward}, "fwd,bwd": {flashkit.PassForward, flashkit.PassBackward}}[f.pass]
	if !ok {
		return nil, fmt.Errorf("-pass %q: must be fwd, bwd or fwd,bwd", f.pass)
	}
	problems, err := bench.ParseProblems(f.problems)
	if f.random > 0 {
		problems = bench.RandomProblems(f.seed, f.random)
	}
	if len(problems) == 0 {
		return bench.RegretGrid(), err
	}
	return bench.HeatsOf(problems, passes...), err
}

func (f *options) race(ctx context.Context, show *terminal.Progress, stdout io.Writer) error {
	list, err := f.heats()
	if err != nil {
		return err
	}
	b := bench.New(bench.Settings{Seed: f.seed}, nil, nil, false)
	if err := b.Open(ctx, f.backend); err != nil {
		return err
	}
	defer b.Close()
	report, ended := b.Regret(ctx, list, f.timePerCase, show)
	show.Done()
	return errors.Join(f.print(stdout, report, report.WriteTable), ended)
}

func (f *options) replay(ctx context.Context, show *terminal.Progress, stdout io.Writer) error {
	traces, err := replay.Read(f.traces)
	if err != nil {
		return err
	}
	where, err := describe(ctx)
	if err != nil {
		return err
	}
	report, ended := replay.Run(ctx, traces, where, replay.Options{Backend: f.backend, Seed: f.seed, Runs: f.runs}, show)
	show.Done()
	return errors.Join(f.print(stdout, report, report.WriteTable), ended)
}

// describe describes the machine. It closes all devices again, so that they are free for the
// replay's processes.
func describe(ctx context.Context) (machine.Info, error) {
	d := dispatch.All(ctx)
	gpu := bench.OpenGPU(ctx, d)
	info := machine.Describe(d, gpu)
	if gpu == nil {
		return info, d.Close()
	}
	return info, errors.Join(gpu.Close(), d.Close())
}

// print prints the report as JSON if f.json is true. Otherwise write prints the report as text.
func (f *options) print(stdout io.Writer, report any, write func(io.Writer) error) error {
	if f.json {
		return json.NewEncoder(stdout).Encode(report)
	}
	return write(stdout)
}
