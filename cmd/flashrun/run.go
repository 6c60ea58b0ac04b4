package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// runFlags are the flags of flashrun run, as given.
type runFlags struct {
	in      []string
	out     string
	problem string
	seed    uint64
	backend string
	layout  string
	dtype   string
	causal  bool
	window  string
	topLeft bool
	scale   string

	backward bool
	check    bool
	repeat   int
	json     bool
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Compute attention on real tensors",
		Long: `Run computes attention, prints which kernel did it and how fast, and writes the
result. Input is one of

  nothing            an embedded real sample: one attention layer of a transformer
                     on a text, with an expected output to compare with
  --in FILE          tensors q, k, v (and do for --backward) of a safetensors file,
                     or .npy files named q.npy, k.npy, ... or given as q=FILE.
                     A pipe will do, of up to 1 GiB; - is the standard input
  --problem NAME     random tensors for a named problem

Q is [batch, heads, rows, head dim], K and V have one head for each group of
query heads (bhsd), or rows before heads with --layout bshd. The output is a
safetensors file with o, lse and, with --backward, dq, dk and dv, in the layout
of the input. It appears whole or not at all, and not where --check finds NaN or
an infinity that should not be there.`,
		Example: `  flashrun run
  flashrun run --in qkv.safetensors --out o.safetensors --causal
  flashrun run --in q.npy --in k.npy --in v.npy --window 128,0 --check
  flashrun run --problem b1-h8-g2-n512-m512-d64-bf16-causal --backward --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.in, "in", nil, "input `file`; repeat for .npy files")
	flags.StringVar(&f.out, "out", "", "write o, lse and gradients to this safetensors `file`")
	flags.StringVar(&f.problem, "problem", "", "random input for the problem of this `name`, such as b1-h8-g2-n128-m512-d64-f32-causal")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of random input")
	addBackendFlag(cmd, &f.backend, "`name` of a backend or kernel: auto, simd, wasm, cuda, simd/fwd_generic (default FLASHKIT_BACKEND, else auto)")
	flags.StringVar(&f.layout, "layout", "bhsd", "`order` of dimensions in files: bhsd or bshd")
	flags.StringVar(&f.dtype, "dtype", "", "round the input to this `type` first: f32, f16 or bf16")
	flags.BoolVar(&f.causal, "causal", false, "no row sees a key after its own position")
	flags.StringVar(&f.window, "window", "", "each row sees `L,R` keys before and after its position; inf for no limit")
	flags.BoolVar(&f.topLeft, "top-left", false, "align the mask to the first row and key, not to the last")
	flags.StringVar(&f.scale, "scale", "", "multiply Q·K by this `number` (default 1/sqrt(head dim))")
	flags.BoolVar(&f.backward, "backward", false, "also compute the gradients dq, dk, dv; needs do unless the input is random")
	flags.BoolVar(&f.check, "check", false, "compare with the float64 oracle, which takes long and much memory for long sequences")
	flags.IntVar(&f.repeat, "repeat", 0, "time this many calls and report the median; 0 for about a second's worth")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	for name, values := range map[string][]string{"layout": {"bhsd", "bshd"}, "dtype": {"f32", "f16", "bf16"}} {
		cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	in, err := f.input(cmd)
	if err != nil {
		return err
	}
	if f.repeat < 0 {
		return fmt.Errorf("--repeat %d: must not be negative", f.repeat)
	}
	if f.check {
		if err := checkable(in.problem, f.backward); err != nil {
			return err
		}
	}
	d, err := openDispatch(cmd, f.backend)
	if err != nil {
		return err
	}
	defer d.Close()
	var file *outputFile
	if f.out != "" {
		if file, err = createOutput(f.out, f.in); err != nil {
			return err
		}
		defer file.discard()
	}
	rep, out, err := f.compute(ctx, d, in, newProgress(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	addToProfile(d)
	wrong := rep.verdict() // nobody should go on with an output that is
	if file != nil && wrong == nil {
		if err := file.commit(out.file(in.problem, rep, in.layout).Write); err != nil {
			return failed(err)
		}
	}
	if f.json {
		err = rep.writeJSON(cmd.OutOrStdout())
	} else {
		err = rep.writeText(cmd.OutOrStdout(), written(f.out, wrong))
	}
	if err != nil {
		return failed(err)
	}
	return failed(wrong)
}

// written returns the name of the file that was written.
func written(out string, wrong error) string {
	if wrong != nil {
		return ""
	}
	return out
}

// compute picks the kernels, runs and times them, and checks the result.
func (f *runFlags) compute(ctx context.Context, d *dispatch.Dispatcher, in *input, show *progress) (*outcome, *outputs, error) {
	defer show.done()
	p := in.problem
	if err := affordable("the outputs of "+p.String(), f.outputBytes(p)); err != nil {
		return nil, nil, err
	}
	out := newOutputs(p, f.backward)
	args := newArgs(in, out, in.layout)
	call := func(k flashkit.Kernel) error { return k.Compute(ctx, p, &args) }
	rep := &outcome{Problem: p.String(), Source: in.source}
	m, err := measure(ctx, d, p, flashkit.PassForward, f.repeat, show, call)
	if err != nil {
		return nil, nil, err
	}
	rep.set(p, m)
	if f.backward {
		rep.ForwardKernel, rep.ForwardSeconds = rep.Kernel, rep.Seconds
		m, err = measure(ctx, d, p, flashkit.PassBackward, f.repeat, show, call)
		if err != nil {
			return nil, nil, err
		}
		rep.set(p, m)
	}
	if f.check {
		show.say("computing the oracle")
		rep.checkAgainstOracle(in, out)
	}
	if in.expected != nil {
		rep.checkAgainstStored(in, out)
	}
	return rep, out, nil
}

// outputBytes returns what the outputs take, with the bytes that go to a file.
func (f *runFlags) outputBytes(p flashkit.Problem) float64 {
	bytes := outputBytes(p, f.backward)
	if f.out != "" {
		bytes *= 2
	}
	return bytes
}

// input reads or makes the tensors and applies the flags to the problem.
func (f *runFlags) input(cmd *cobra.Command) (*input, error) {
	l, err := parseLayout(f.layout)
	if err != nil {
		return nil, err
	}
	if f.problem != "" {
		return f.randomInput(cmd, l)
	}
	var in *input
	if len(f.in) > 0 {
		in, err = readInputs(f.in, l)
	} else {
		if l != bhsd {
			return nil, errors.New("--layout bshd: the embedded sample is bhsd")
		}
		in, err = sampleInput()
	}
	if err != nil {
		return nil, err
	}
	if f.backward && in.do == nil {
		if len(f.in) > 0 {
			return nil, errors.New("tensor do is missing: --backward needs the gradient of o")
		}
		in.do = randomInput(in.problem, f.seed, l, true).do
	}
	if err := f.shape(cmd, in); err != nil {
		return nil, err
	}
	return in, in.problem.Validate()
}

func (f *runFlags) randomInput(cmd *cobra.Command, l layout) (*input, error) {
	for _, name := range []string{"in", "causal", "window", "top-left", "scale", "dtype"} {
		if cmd.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s: conflicts with --problem", name)
		}
	}
	p, err := flashkit.ParseProblem(f.problem)
	if err != nil {
		return nil, err
	}
	if err := affordable("the tensors of "+p.String(), tensorBytes(p, f.backward)); err != nil {
		return nil, fmt.Errorf("--problem: %w", err)
	}
	return randomInput(p, f.seed, l, f.backward), nil
}

// shape applies --dtype, --causal, --window, --top-left and --scale.
func (f *runFlags) shape(cmd *cobra.Command, in *input) error {
	p := in.problem
	if f.dtype != "" {
		t, err := flashkit.ParseDType(f.dtype)
		if err != nil {
			return fmt.Errorf("--dtype %q: must be f32, f16 or bf16", f.dtype)
		}
		p.DType = t
		in.q, in.k, in.v, in.do = in.q.convert(t), in.k.convert(t), in.v.convert(t), in.do.convert(t)
	}
	if f.causal && f.window != "" {
		return errors.New("--causal and --window exclude each other: causal is --window inf,0")
	}
	if f.causal {
		p.Band = flashkit.Causal()
	}
	if f.window != "" {
		var err error
		if p.Band, err = parseWindow(f.window); err != nil {
			return err
		}
	}
	if f.topLeft {
		p.Band = p.Band.TopLeft()
	}
	if cmd.Flags().Changed("scale") {
		scale, err := strconv.ParseFloat(f.scale, 32)
		if err != nil || !(scale > 0) || math.IsInf(scale, 0) {
			return fmt.Errorf("--scale %q: must be a positive number", f.scale)
		}
		p.Scale = float32(scale)
	}
	if p != in.problem {
		in.expected = nil // it is for the sample as it is
	}
	in.problem = p
	return nil
}

func parseWindow(s string) (flashkit.Band, error) {
	l, r, ok := strings.Cut(s, ",")
	if !ok {
		return flashkit.Band{}, fmt.Errorf("--window %q: must be two numbers L,R", s)
	}
	var sides [2]int
	for i, side := range [...]string{l, r} {
		if side == "inf" {
			sides[i] = flashkit.Unlimited
			continue
		}
		n, err := strconv.Atoi(side)
		if err != nil || n < 0 {
			return flashkit.Band{}, fmt.Errorf("--window %q: %q must be 0 or more, or inf", s, side)
		}
		sides[i] = n
	}
	return flashkit.Window(sides[0], sides[1]), nil
}
