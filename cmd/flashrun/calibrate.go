package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

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
	opened, d, err := bench.Open(cmd.Context(), f.name()) // calibrate replaces an invalid profile, so it prints no warning
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
	show := terminal.NewProgress(cmd.ErrOrStderr())
	defer show.Done()
	started := time.Now()
	if err := bench.Calibrate(cmd.Context(), d, list, f.timePerCase, show); err != nil {
		return failed(fmt.Errorf("nothing was written: %w", err))
	}
	show.Done()
	if err := d.SaveProfile(path); err != nil {
		return failed(fmt.Errorf("the profile could not be written: %w", err))
	}
	c := bench.NewCalibration(d, list, path, time.Since(started))
	if f.json {
		return failed(json.NewEncoder(cmd.OutOrStdout()).Encode(c))
	}
	return failed(c.WriteTable(cmd.OutOrStdout()))
}

// path returns the path of the profile. It returns an error if the file cannot be created, so that
// calibrate fails before the measurement and not after it.
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

// name returns the value of --backend, or else the backend of FLASHKIT_BACKEND. If FLASHKIT_BACKEND
// names one kernel, calibrate measures all kernels of this kernel's backend.
func (f *calibrateFlags) name() string { return cmp.Or(f.backend, bench.BackendOf(backendChoice(""))) }

func (f *calibrateFlags) heats() ([]bench.Heat, error) {
	if len(f.problems) == 0 {
		return bench.CalibrateGrid(), nil
	}
	problems, err := bench.ParseProblems(f.problems)
	return bench.HeatsOf(problems, flashkit.PassForward, flashkit.PassBackward), err
}
