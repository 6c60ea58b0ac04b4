// Flashrun runs, explains, measures and checks flashkit's attention kernels.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// Exit codes. They must not change, because scripts use them.
const (
	exitOK          = 0
	exitFailed      = 1  // a valid request failed
	exitUsage       = 2  // an invalid request: flags, files, shapes
	exitCrashed     = 70 // a bug in flashrun
	exitInterrupted = 130
)

func main() {
	debug.SetTraceback("crash") // an unrecovered panic then ends with SIGABRT, on systems that have it, instead of exit code 2, which means an invalid request
	os.Exit(execute(interruptible(), os.Args[1:], os.Stdout, os.Stderr))
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if x := recover(); x != nil {
			fmt.Fprintln(stderr, "flashrun:", crashed(x))
			code = exitCrashed
		}
	}()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	usage(root)
	err := knownCommand(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return exitOK
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		fmt.Fprintln(stderr, "flashrun:", bench.Interruption(err))
		return exitInterrupted
	}
	fmt.Fprintln(stderr, "flashrun:", message(err.Error()))
	var failed *failure
	switch {
	case errors.As(err, &failed), errors.Is(err, flashkit.ErrUnavailable), errors.Is(err, errors.ErrUnsupported):
		return exitFailed
	}
	return exitUsage
}

// A failure is an error of a valid request. flashrun then exits with exitFailed. For an invalid
// request it exits with exitUsage.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failed(err error) error {
	if err == nil {
		return nil
	}
	return &failure{err}
}

// runError returns err as a failure, but unchanged if err reports an invalid request.
func runError(err error) error {
	var wrong *flashkit.ProblemError
	if errors.As(err, &wrong) {
		return err
	}
	return failed(err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "flashrun",
		Short: "Exact attention on the CPU, in a sandbox, or on the GPU",
		Long: `Flashrun computes exact attention (FlashAttention) with the fastest kernel of
this machine, explains which one that is and why, measures kernels, and checks
every kernel against the same golden vectors.

Exit status: 0 success, 1 a failure while running, 2 a request that makes no
sense, 70 a bug in flashrun, 130 interrupted.`,
		Example: `  flashrun run
  flashrun run --in qkv.safetensors --out o.safetensors --causal
  flashrun run --problem b1-h8-g2-n1024-m1024-d64-f32-causal --check
  flashrun explain b1-h8-g8-n1-m4096-d128-bf16
  flashrun bench --seq 128:4096:x2 --causal=both --out results.json
  flashrun report results.json -o report.html
  flashrun calibrate
  flashrun memory b1-h8-g8-n4096-m4096-d64-f32
  flashrun conformance --backend simd`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       machine.Version(),
	}
	root.PersistentFlags().String("device", "", "`number` of the GPU, as flashrun list shows it, of ring also several with commas (default FLASHKIT_DEVICE, else 0)")
	root.PersistentPreRunE = setDevice
	root.SetVersionTemplate(versionLine())
	root.AddCommand(newRun(), newList(), newExplain(), newBench(), newCalibrate(), newReport(), newMemory(), newConformance(), newJudge(), newReplay(), newRing(), newVersion(), newBurn())
	return root
}

// setDevice sets the environment variable from which cuda.Open reads the number of the GPU.
func setDevice(cmd *cobra.Command, _ []string) error {
	numbers, err := devices(cmd)
	if err != nil || len(numbers) == 0 || cmd.Name() == ringName {
		return err // ring opens its GPUs by number, without the variable
	}
	return os.Setenv(cuda.DeviceVariable, strconv.Itoa(numbers[0]))
}

// devices returns the GPU numbers in --device. Only the command ring accepts several numbers.
func devices(cmd *cobra.Command) (list []int, err error) {
	text, err := cmd.Flags().GetString("device")
	if err != nil || text == "" {
		return nil, err
	}
	must := "the number of a GPU, from 0"
	if cmd.Name() == ringName {
		must = "numbers of GPUs, from 0, with commas"
	}
	for number := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 || len(list) > 0 && cmd.Name() != ringName {
			return nil, fmt.Errorf("--device %q: must be %s", text, must)
		}
		list = append(list, n)
	}
	return list, nil
}

// missingDevice returns an error if --device or FLASHKIT_DEVICE requests a GPU that cannot be used.
// Without such a request it prints a warning about a GPU that cannot be used.
func missingDevice(cmd *cobra.Command, d *dispatch.Dispatcher) error {
	for _, m := range d.Missing() {
		switch name := os.Getenv(cuda.DeviceVariable); {
		case m.Backend != "cuda", cmd.Context().Err() != nil:
		case name != "":
			return fmt.Errorf("device %s requested: %w", name, m.Err)
		case !errors.Is(m.Err, cuda.ErrNoDevice):
			fmt.Fprintln(cmd.ErrOrStderr(), "flashrun: warning: the GPU is left out:", message(m.Err.Error()))
		}
	}
	return nil
}

func warnOfProfile(cmd *cobra.Command, d *dispatch.Dispatcher) {
	if err := d.ProfileErr(); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "flashrun: warning:", message(err.Error()), "(flashrun calibrate writes a new one)")
	}
}

// openDispatch returns the dispatcher for the value of --backend, or for FLASHKIT_BACKEND if the
// value is "". The caller closes the dispatcher.
func openDispatch(cmd *cobra.Command, backend string) (*dispatch.Dispatcher, error) {
	name := backendChoice(backend)
	opened, chosen, err := bench.Open(cmd.Context(), name)
	if err != nil {
		return nil, err
	}
	warnOfProfile(cmd, opened)
	if name == "auto" {
		err = missingDevice(cmd, opened)
	}
	if err != nil {
		opened.Close()
		return nil, err
	}
	return chosen, nil
}

// backendChoice returns the value of --backend, or else the value of FLASHKIT_BACKEND, or else
// "auto".
func backendChoice(flag string) string {
	return cmp.Or(flag, os.Getenv("FLASHKIT_BACKEND"), "auto")
}

func addBackendFlag(cmd *cobra.Command, to *string, usage string) {
	cmd.Flags().StringVar(to, "backend", "", usage)
	cmd.RegisterFlagCompletionFunc("backend", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		d := dispatch.All(cmd.Context())
		defer d.Close()
		return d.Choices(), cobra.ShellCompDirectiveNoFileComp
	})
}
