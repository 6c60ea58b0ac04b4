package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/outfile"
)

// calibrateFlags are the flags of flashrun calibrate, as given.
type calibrateFlags struct {
	backend     string
	problems    []string
	out         string
	timePerCase time.Duration
	json        bool
}

func newCalibrate() *cobra.Command {
	var f calibrateFlags
	cmd := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure how fast the kernels are on this machine, for dispatch to know",
		Long: `Calibrate runs every kernel on problems of all kinds for about a minute and writes
what it finds to the profile of this machine, which every program that uses
dispatch.Default reads from then on. Without a profile dispatch goes by what
kernels predict of themselves, and by probes of some milliseconds.

The profile lies in the user's cache folder, or where FLASHKIT_PROFILE says. It
counts on the same processor, number of cores, GPU and driver only. Run it while
the machine has nothing else to do. With --problem, what is found is added to
what the profile knows. A file that exists and is not a profile is not replaced.`,
		Example: `  flashrun calibrate
  flashrun calibrate --out machine.profile && FLASHKIT_PROFILE=machine.profile flashrun list
  flashrun calibrate --problem b1-h32-g8-n1-m5000-d128-bf16`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	addBackendFlag(cmd, &f.backend, "measure only the kernels of this `name`: auto, simd, wasm, cuda, simd/fwd_generic (default the backend of FLASHKIT_BACKEND, else all)")
	flags.StringArrayVar(&f.problems, "problem", nil, "measure the problem of this `name` only; repeat for more")
	flags.StringVar(&f.out, "out", "", "write the profile to this `file` (default the profile of this machine)")
	flags.DurationVar(&f.timePerCase, "time-per-case", 40*time.Millisecond, "measure a kernel on a problem for about this long")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

func (f *calibrateFlags) run(cmd *cobra.Command) error {
	if f.timePerCase <= 0 {
		return fmt.Errorf("--time-per-case %v: must be positive", f.timePerCase)
	}
	list, err := f.heats()
	if err != nil {
		return err
	}
	opened, d, err := openWith(cmd.Context(), f.name()) // a bad profile is no news here
	if err != nil {
		return err
	}
	defer opened.Close()
	if f.name() == "auto" {
		err = missingDevice(cmd, opened)
	}
	if err != nil {
		return err
	}
	if len(f.problems) == 0 {
		d = d.Blank()
	}
	path, err := f.path(d)
	if err != nil {
		return err
	}
	show := newProgress(cmd.ErrOrStderr())
	defer show.done()
	started := time.Now()
	if err := f.measure(cmd.Context(), d, list, show); err != nil {
		return failed(fmt.Errorf("nothing was written: %w", err))
	}
	show.done()
	if err := d.SaveProfile(path); err != nil {
		return failed(fmt.Errorf("the profile could not be written: %w", err))
	}
	return failed(f.report(cmd.OutOrStdout(), d, list, path, time.Since(started)))
}

// path returns where to write the profile, and finds out now whether that is possible.
func (f *calibrateFlags) path(d *dispatch.Dispatcher) (string, error) {
	if f.out != "" {
		file, err := createOutput(f.out, outfile.Profile, nil)
		if err != nil {
			return "", err
		}
		file.Discard()
		return file.Path(), nil
	}
	path, err := d.ProfilePath()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		return "", failed(fmt.Errorf("no cache folder for the profile; name a file with --out: %w", err))
	}
	file, err := outfile.Create(path, outfile.Profile)
	if err != nil && os.Getenv("FLASHKIT_PROFILE") != "" {
		return "", fmt.Errorf("FLASHKIT_PROFILE: %w", err)
	}
	if err != nil {
		return "", fmt.Errorf("the profile of this machine: %w", err)
	}
	file.Discard()
	return file.Path(), nil
}

// name returns what --backend chooses, else the backend that the environment names: a program
// under this environment opens no other, but may restrict itself to another kernel.
func (f *calibrateFlags) name() string { return cmp.Or(f.backend, backendOf(backendChoice(""))) }

// heats returns what to measure.
func (f *calibrateFlags) heats() ([]heat, error) {
	if len(f.problems) == 0 {
		return calibrateGrid(), nil
	}
	problems, err := namedProblems(f.problems)
	var list []heat
	for _, p := range problems {
		list = append(list, heat{p, []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward}})
	}
	return list, err
}

// measure races the kernels over the problems; d learns what each takes.
func (f *calibrateFlags) measure(ctx context.Context, d *dispatch.Dispatcher, list []heat, show *progress) error {
	r := &race{dispatch: d.Frozen(), kernels: d.Kernels(), slice: f.timePerCase / raceRounds, rounds: raceRounds, order: rand.New(rand.NewPCG(1, 1))}
	return r.each(ctx, list, show, func(data *tensors, s flashkit.Pass, racers []*racer) error {
		for _, x := range racers {
			if len(x.times) == 0 {
				continue
			}
			if err := d.Learn(x.kernel.Name, data.problem, time.Duration(x.seconds()*1e9)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *calibrateFlags) report(w io.Writer, d *dispatch.Dispatcher, list []heat, path string, took time.Duration) error {
	c := calibration{Profile: path, Seconds: took.Seconds(), Machine: describeMachine(d, nil)}
	own := d.Blank().Kernels()
	for i, k := range d.Kernels() {
		var off []float64
		for _, h := range list {
			if !slices.Contains(h.passes, k.Pass) || k.Fits(h.problem.Ask(k.Pass)) != "" {
				continue
			}
			if itself := own[i].Cost(h.problem.Ask(k.Pass)); itself > 0 {
				off = append(off, float64(k.Cost(h.problem.Ask(k.Pass)))/float64(itself))
			}
		}
		if len(off) > 0 {
			slices.Sort(off)
			c.Kernels = append(c.Kernels, calibratedKernel{k.Name, len(off), off[0], quantile(off, .5), off[len(off)-1]})
		}
	}
	if f.json {
		return json.NewEncoder(w).Encode(c)
	}
	out := bufio.NewWriter(text(w))
	fmt.Fprintf(out, "machine: %s\n\n", c.Machine)
	rows := [][]string{{"time over the kernel's own prediction", "problems", "least", "median", "most"}}
	round := func(x float64) string { return fmt.Sprint(math.Round(x*100) / 100) }
	for _, k := range c.Kernels {
		rows = append(rows, []string{k.Kernel, fmt.Sprint(k.Problems), round(k.Least), round(k.Median), round(k.Most)})
	}
	writeColumns(out, rows, 1)
	fmt.Fprintf(out, "\nwritten to %s after %s\n", path, took.Round(time.Second))
	return out.Flush()
}
