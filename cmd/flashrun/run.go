package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

type runFlags struct {
	in          []string
	out         string
	problem     string
	seed        uint64
	backend     string
	layout      string
	dtype       string
	mask        maskFlags
	numbers     []numberFlag
	alibi       bool
	dropoutSeed uint64
	carry       bool

	pass   passList
	check  bool
	repeat int
	json   bool
	memory string
}

func newRun() *cobra.Command {
	f := runFlags{pass: passList{flashkit.PassForward}}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Compute attention on real tensors",
		Long: `Run computes attention, prints which kernel did it and how fast, and writes the
result. Input is one of

  nothing            an embedded real sample: one attention layer of a transformer
                     on a text, with an expected output to compare with
  --in FILE          tensors q, k, v (and do for --pass fwd,bwd) of a safetensors file,
                     or .npy files named q.npy, k.npy, ... or given as q=FILE.
                     A pipe will do, of up to 1 GiB; - is the standard input
  --problem NAME     random tensors for a named problem, and all that it asks for

Q is [batch, heads, rows, head dim], K and V have one head for each group of
query heads (bhsd), or rows before heads with --layout bshd. The output is a
safetensors file with o, lse and, with --pass fwd,bwd, dq, dk, dv, dbias and dsink, in
the layout of the input. It appears whole or not at all, and not where --check
finds NaN or an infinity that should not be there.

These tensors of the input are taken into account if they are there:

  bias, mask         [batch, heads, rows, keys], all but the last may be 1 or, in
                     front, left out; bias is added to scores, and what mask (BOOL
                     or U8) has 0 for takes no part
  ranges             [batch, heads, rows, 2 or 4], I32, batch and heads may be 1: the first
                     key of one or two ranges, and the key after the last: others
                     take no part
  slopes, sink       [heads], slopes also [batch, heads]: of ALiBi, and a logit
                     that takes weight and has no value
  q_lens, kv_lens    [batch], I32 or I64: how many rows and keys each sequence has
  q_starts, kv_starts
                     [batch+1]: the sequences lie one after the other in batch 0
  pages              [batch, pages]: k and v are pools [pages, heads, keys of a page,
                     head dim], with kv_lens
  dlse               [batch, heads, rows]: the gradient of lse
  o, lse             with --carry: the result of earlier keys, which is continued`,
		Example: `  flashrun run
  flashrun run --in qkv.safetensors --out o.safetensors --causal
  flashrun run --in q.npy --in k.npy --in v.npy --window 128,0 --check
  flashrun run --in q.npy --in k.npy --in v.npy --in mask.npy --softcap 30 --alibi
  flashrun run --in cache.safetensors --causal --top-left --dropout 0.1 --dropout-seed 7
  flashrun run --problem b4-h8-g2-n1-m1000-d64-bf16-sink-ragged-page16 --check
  flashrun run --problem b1-h8-g2-n512-m512-d64-bf16-causal --pass fwd,bwd --json
  flashrun run --problem b1-h32-g8-n1-m65536-d128-bf16 --memory device`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.add(cmd)
	return cmd
}

func (f *runFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.in, "in", nil, "input `file`; repeat for .npy files")
	flags.StringVar(&f.out, "out", "", "write o, lse and gradients to this safetensors `file`")
	flags.StringVar(&f.problem, "problem", "", "random input for the problem of this `name`, such as b1-h8-g2-n128-m512-d64-f32-causal")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of random input")
	addBackendFlag(cmd, &f.backend, "`name` of a backend or kernel: auto, simd, wasm, cuda, simd/fwd_generic (default FLASHKIT_BACKEND, else auto)")
	flags.StringVar(&f.layout, "layout", "bhsd", "`order` of dimensions in files: bhsd or bshd")
	flags.StringVar(&f.dtype, "dtype", "", "round the input to this `type` first: f32, f16, bf16 or, with k and v in the second one, f32-kvf16, f32-kvbf16")
	f.mask.add(cmd, false)
	f.numbers = addNumberFlags(flags)
	flags.BoolVar(&f.alibi, "alibi", false, "subtract slope times distance from scores; slopes are 2^(-8h/heads) unless the input has others")
	flags.Uint64Var(&f.dropoutSeed, "dropout-seed", 0, "which weights are dropped (default the `number` of --seed)")
	flags.BoolVar(&f.carry, "carry", false, "continue o and lse of the input, which are of earlier keys")
	addPassFlag(cmd, &f.pass, "a `list` of passes: fwd, or fwd,bwd for the gradients too; bwd needs do unless the input is random")
	flags.BoolVar(&f.check, "check", false, "compare with the float64 oracle, which takes long and much memory for long sequences")
	flags.IntVar(&f.repeat, "repeat", 0, "time this many calls and report the median; 0 for about a second's worth")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	flags.StringVar(&f.memory, "memory", machine.Host, "`where` tensors lie when kernels are timed: host or, for the GPU's kernels alone, device")
	for name, values := range map[string][]string{"layout": {"bhsd", "bshd"}, "dtype": input.TypeNames, "memory": {machine.Host, machine.Device}} {
		cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
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
		if err := input.Checkable(in, f.pass.backward()); err != nil {
			return err
		}
	}
	d, err := f.open(cmd)
	if err != nil {
		return err
	}
	defer d.Close()
	var file *outfile.File
	if f.out != "" {
		if file, err = createOutput(f.out, outputKind, f.in); err != nil {
			return err
		}
		defer file.Discard()
	}
	rep, w, err := f.compute(ctx, d, in, terminal.NewProgress(cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	if d.GPU == nil {
		bench.SaveToProfile(d.Dispatch)
	}
	wrong := rep.verdict() // if the output is wrong, it is not written to the file
	if file != nil && wrong == nil {
		out, err := w.File(rep.Kernel, rep.ForwardKernel)
		if err == nil {
			err = commit(file, out.Write)
		}
		if err != nil {
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
	if rep.nans != "" && wrong == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "flashrun: warning: the input has NaN:", rep.nans)
	}
	return failed(wrong)
}

// written returns the name of the output file, or "" if the output was wrong and therefore not
// written.
func written(out string, wrong error) string {
	if wrong != nil {
		return ""
	}
	return out
}

// compute picks a kernel for each pass, and runs and times it. If --check is set, it compares the
// outputs with the float64 oracle. If the input has a stored output, it also compares O with this
// output.
func (f *runFlags) compute(ctx context.Context, d *bench.Place, in *input.Input, show *terminal.Progress) (*outcome, *input.Work, error) {
	defer show.Done()
	p := in.Problem
	if err := machine.Affordable("the outputs of "+p.String(), f.outputBytes(in)); err != nil {
		return nil, nil, err
	}
	w := input.NewWork(in, f.pass.backward())
	passes := []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward}
	if f.pass.backward() {
		d.Dispatch = d.Dispatch.Paired()
	} else {
		d.Dispatch, passes = d.Dispatch.Unpaired(), passes[:1] // run always computes LSE, so LSE is no sign that a backward pass follows
	}
	for _, s := range passes {
		if err := p.Check(s, &w.Args); err != nil {
			return nil, nil, input.OfFile(err)
		}
	}
	if err := d.Put(ctx, w); err != nil {
		return nil, nil, runError(err)
	}
	rep, c, measured := &outcome{Problem: p.String(), Source: in.Source, Memory: d.Memory()}, new(flashkit.Call), []bench.Measurement{}
	for _, s := range passes {
		rep.ForwardKernel, rep.ForwardSeconds = rep.Kernel, rep.Seconds
		m, err := d.Pick(ctx, p, s)
		if err != nil {
			return nil, nil, runError(err)
		}
		if d.GPU == nil {
			if err := input.NewMaker(d.Dispatch, 1).CallTiny(ctx, m.Kernel, p); err != nil {
				return nil, nil, runError(err)
			}
		}
		if err := m.Affordable(p); err != nil {
			return nil, nil, err
		}
		if err := m.Run(p, f.repeat, show, func(k flashkit.Kernel) error { return k.Compute(ctx, p, d.Args) }); err != nil {
			return nil, nil, runError(err)
		}
		if err := d.Finish(ctx, w, &m); err != nil {
			return nil, nil, runError(err)
		}
		if err := c.Set(p, s, &w.Args); err != nil {
			return nil, nil, err
		}
		rep.set(c, m)
		measured = append(measured, m)
	}
	d.Learn(p, measured)
	rep.nans = w.NaNs(c)
	if f.check {
		show.Say("computing the oracle")
		rep.setChecked(w.AgainstOracle(c))
	}
	if !in.Expected.IsZero() {
		stored := w.AgainstStored()
		rep.StoredMaxDiff = &stored
	}
	return rep, w, nil
}

// outputBytes returns the number of bytes of the outputs. With --out, this number includes the
// copies for the output file.
func (f *runFlags) outputBytes(in *input.Input) float64 {
	bytes := in.OutputBytes(f.pass.backward())
	if f.out != "" {
		bytes *= 2
	}
	return bytes
}

// input reads or generates the tensors, and changes the problem as the flags request.
func (f *runFlags) input(cmd *cobra.Command) (*input.Input, error) {
	l, err := input.ParseLayout(f.layout)
	if err != nil {
		return nil, err
	}
	if f.problem != "" {
		return f.randomInput(cmd, l)
	}
	var in *input.Input
	if len(f.in) > 0 {
		in, err = input.ReadFiles(f.in, l, f.carry)
	} else {
		if l != input.BHSD {
			return nil, errors.New("--layout bshd: the embedded sample is bhsd")
		}
		if f.carry {
			return nil, errors.New("--carry: the embedded sample has no earlier keys")
		}
		in, err = input.Sample()
	}
	if err != nil {
		return nil, err
	}
	if f.pass.backward() && in.Args.DO.IsZero() {
		if len(f.in) > 0 {
			return nil, errors.New("tensor do is missing: --pass fwd,bwd needs the gradient of o")
		}
		in.Args.DO = input.Random(in.Problem, f.seed, l, true).Args.DO
	}
	if err := f.shape(cmd, in); err != nil {
		return nil, err
	}
	if err := in.Problem.Validate(); err != nil {
		return nil, err
	}
	return in, f.finishInput(cmd, in)
}

// problemFlags are the flags that conflict with --problem, in addition to the flags in
// runFlags.numbers.
var problemFlags = []string{"in", "causal", "window", "top-left", "shift", "alibi", "carry", "dtype"}

func (f *runFlags) randomInput(cmd *cobra.Command, l input.Layout) (*input.Input, error) {
	names := slices.Clone(problemFlags)
	for _, x := range f.numbers {
		names = append(names, x.Name)
	}
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s: conflicts with --problem", name)
		}
	}
	p, err := flashkit.ParseProblem(f.problem)
	if err != nil {
		return nil, err
	}
	if err := f.checkBackward(&p); err != nil {
		return nil, err
	}
	if err := machine.Affordable("the tensors of "+p.String(), input.Bytes(p, f.pass.backward())); err != nil {
		return nil, fmt.Errorf("--problem: %w", err)
	}
	in := input.Random(p, f.seed, l, f.pass.backward())
	return in, f.finishInput(cmd, in)
}

// finishInput sets the dropout seed. It returns an error if the problem has no backward pass but
// --pass requests it.
func (f *runFlags) finishInput(cmd *cobra.Command, in *input.Input) error {
	if in.Args.Seed = f.seed; cmd.Flags().Changed("dropout-seed") {
		if in.Problem.Score.Dropout == 0 {
			return errors.New("--dropout-seed: goes with --dropout, or with a problem that has it")
		}
		in.Args.Seed = f.dropoutSeed
	}
	return f.checkBackward(&in.Problem)
}

func (f *runFlags) checkBackward(p *flashkit.Problem) error {
	switch {
	case f.pass.backward() && p.Page > 0:
		return errors.New("--pass fwd,bwd: there is no backward pass for keys in pages")
	case f.pass.backward() && p.Carry:
		return errors.New("--pass fwd,bwd: there is no backward pass for a result that is continued; the ordinary one takes o and lse of all keys")
	case f.pass.backward() && p.KVDType != 0:
		return fmt.Errorf("--pass fwd,bwd: there is no backward pass for keys of another type, %v", p.KVDType)
	}
	return nil
}

// open opens the backend of --backend. The kernels' tensors will be in the memory of --memory, host
// or device.
func (f *runFlags) open(cmd *cobra.Command) (*bench.Place, error) {
	switch f.memory {
	case machine.Host:
		d, err := openDispatch(cmd, f.backend)
		return &bench.Place{Dispatch: d}, err
	case machine.Device:
	default:
		return nil, fmt.Errorf("--memory %q: must be host or device", f.memory)
	}
	name := backendChoice(f.backend)
	if name != "auto" && bench.BackendOf(name) != "cuda" {
		return nil, fmt.Errorf("--memory device: only the GPU's kernels take such tensors, not --backend %s", name)
	}
	gpu, err := cuda.OpenContext(cmd.Context())
	if err != nil {
		return nil, fmt.Errorf("--memory device: %w", err)
	}
	return bench.OnGPU(gpu, name)
}
