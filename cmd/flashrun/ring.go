package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/terminal"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
)

// ringFlags are those of flashrun ring.
type ringFlags struct {
	problems                 []string
	lengths                  []int
	backend, devices, link   string
	transport                string
	ranks, runs, workers     int
	backward, ordered, check bool
	asJSON, quiet, hosted    bool
	seed                     uint64
	timeout                  time.Duration
}

func newRing() *cobra.Command {
	f := new(ringFlags)
	cmd := &cobra.Command{
		Use:   "ring --problem NAME",
		Short: "Compute one problem over many ranks: goroutines, GPUs, or processes of MPI",
		Long: `Ring cuts a random problem for the ranks that it finds, computes it over them, and
prints the time, the efficiency beside one rank, the bytes that each rank sent and
how much of their time kernels hid, with what the model of a step predicts.

Started by mpiexec it is one of its ranks; with --transport nccl its tensors lie on
the GPU with the rank's number on its machine, and NCCL moves them. Else --ranks says how many goroutines to
take, which share the processors of this machine, or --devices which GPUs: their
tensors lie there and travel between them, or with --host lie in the host's memory.
With --check every rank compares its rows with what one rank computes.`,
		Example: `  flashrun ring --problem b1-h8-g2-n4096-m4096-d64-f32-causal --ranks 2 --check
  flashrun ring --problem b1-h32-g8-n65536-m65536-d128-bf16-causal --devices 0,1 --backward
  flashrun ring --problem b1-h32-g8-n1-m1-d128-bf16-causal --lengths 40000,9000,700 --devices 0,1
  mpiexec -n 4 flashrun ring --problem b1-h8-g8-n8192-m8192-d128-f32 --backward --json
  mpiexec -n 8 flashrun ring --problem b1-h32-g8-n65536-m65536-d128-bf16-causal --transport nccl`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.problems, "problem", nil, "`name` of the problem of the whole, or several with commas")
	flags.IntSliceVar(&f.lengths, "lengths", nil, "`rows` of packed sequences with commas, in place of the problem's batches and lengths")
	flags.IntVar(&f.ranks, "ranks", 0, "goroutines that are ranks, where no mpiexec says how many there are (default 2)")
	flags.StringVar(&f.devices, "devices", "", "`numbers` of GPUs with commas: a goroutine for each, whose tensors lie on the GPU")
	flags.StringVar(&f.transport, "transport", transportAuto, "`name` of what moves tensors of GPUs: peer, nccl, or auto, which is peer")
	flags.BoolVar(&f.hosted, "host", false, "tensors of GPUs lie in the host's memory")
	flags.BoolVar(&f.backward, "backward", false, "compute both passes")
	flags.BoolVar(&f.ordered, "ordered", false, "gather K and V first, for the bits of one rank")
	flags.BoolVar(&f.check, "check", false, "compare with what one rank computes")
	flags.IntVar(&f.runs, "runs", 3, "how many times to compute; the median counts")
	flags.IntVar(&f.workers, "workers", 0, "goroutines of each rank's kernels; 0 is no limit")
	flags.StringVar(&f.link, "link", "shared", "`name` of the link that the model supposes")
	flags.Uint64Var(&f.seed, "seed", 1, "of the random input")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long a rank waits in all")
	flags.BoolVar(&f.asJSON, "json", false, "print a JSON object")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on stderr")
	addBackendFlag(cmd, &f.backend, "the backend or kernel of each rank")
	cmd.RegisterFlagCompletionFunc("transport", cobra.FixedCompletions(transports, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *ringFlags) run(cmd *cobra.Command) error {
	list, err := f.parse()
	switch {
	case err != nil:
		return err
	case f.hosted && f.devices == "":
		return errors.New("--host: says where the tensors of --devices lie, which names none")
	case f.devices != "" && f.ranks != 0:
		return fmt.Errorf("--devices %s: says how many ranks there are, as --ranks %d does", f.devices, f.ranks)
	case cmd.Flags().Changed("ranks") && f.ranks < 1:
		return fmt.Errorf("--ranks %d: must be at least 1", f.ranks)
	case f.runs < 1 || f.workers < 0:
		return fmt.Errorf("--runs %d, --workers %d: must not be negative, and at least one run", f.runs, f.workers)
	}
	if _, err := ring.LinkOf(f.link); err != nil {
		return err
	}
	launch, err := ring.Launched(os.Getenv)
	if err != nil {
		return err
	}
	if err := f.checkTransport(launch); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	switch {
	case launch.Size > 1 && f.transport == transportNCCL:
		return f.overNCCL(ctx, cmd, list, launch)
	case launch.Size == 1 && f.devices != "" && !f.hosted:
		return f.overGPUs(ctx, cmd, list)
	case launch.Size == 1:
		return f.overGoroutines(ctx, cmd, list)
	case f.ranks != 0 && f.ranks != launch.Size:
		return fmt.Errorf("--ranks %d: %s started %d", f.ranks, launch.Launcher, launch.Size)
	}
	return f.overProcesses(ctx, cmd, list)
}

// A ringProblem is one that the ranks compute, with the sequences of a packed one.
type ringProblem struct {
	flashkit.Problem
	seqs *flashkit.Sequences
}

// parse returns the problems that the flags name.
func (f *ringFlags) parse() (list []ringProblem, err error) {
	if len(f.problems) == 0 {
		return nil, errors.New("--problem names nothing: it must be a problem, as flashrun explain --help has them")
	}
	for _, name := range f.problems {
		p, err := flashkit.ParseProblem(name)
		switch missing := p.Features() & flashkit.ForwardFeatures; {
		case err != nil:
			return nil, err
		case p.Ragged:
			return nil, fmt.Errorf("--problem %s: must not be ragged: --lengths packs sequences", name)
		case f.backward && missing != 0:
			return nil, fmt.Errorf("--backward: %v has no backward pass", missing)
		}
		x := ringProblem{Problem: p}
		if f.lengths != nil {
			x.seqs, err = packedLengths(f.lengths)
			x.Batch, x.Ragged, x.QLen, x.KVLen = len(f.lengths), true, slices.Max(f.lengths), slices.Max(f.lengths)
			if err == nil {
				err = x.Validate()
			}
		}
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// packedLengths returns the sequences of those lengths.
func packedLengths(lengths []int) (*flashkit.Sequences, error) {
	starts := []int32{0}
	for i, n := range lengths {
		if n < 0 || n > math.MaxInt32-int(starts[i]) {
			return nil, fmt.Errorf("--lengths %d: must not be negative, and in all less than 2^31", n)
		}
		starts = append(starts, starts[i]+int32(n))
	}
	return &flashkit.Sequences{QStarts: starts, KVStarts: starts}, nil
}

// overProcesses is one rank of MPI's.
func (f *ringFlags) overProcesses(ctx context.Context, cmd *cobra.Command, list []ringProblem) error {
	switch status, watched := mpi.Watch(cmd.ErrOrStderr()); {
	case watched && status != 0:
		return failed(fmt.Errorf("the rank ended with status %d", status))
	case watched:
		return nil
	}
	d, err := f.openDispatch(cmd)
	if err != nil {
		return err
	}
	defer d.Close()
	g, err := mpi.Open(ctx)
	if err != nil {
		return runError(err)
	}
	for i := range list {
		result, err := f.rank(ctx, g, d, &list[i], cmd.ErrOrStderr())
		if err == nil && g.Rank() == 0 {
			err = f.print(cmd.OutOrStdout(), result)
		}
		if err != nil {
			return failed(err) // the program ends, and mpiexec the other ranks
		}
	}
	return failed(g.Close())
}

// overGoroutines is all ranks.
func (f *ringFlags) overGoroutines(ctx context.Context, cmd *cobra.Command, list []ringProblem) error {
	runners, err := f.open(cmd)
	defer func() {
		for _, d := range runners {
			d.Close()
		}
	}()
	if err != nil {
		return err
	}
	groups, err := ring.Local(len(runners))
	if err != nil {
		return err
	}
	return f.together(cmd, list, groups, func(i int, p *ringProblem) (*ringResult, error) {
		return f.rank(ctx, groups[i], runners[i], p, cmd.ErrOrStderr())
	})
}

// together runs every problem on all ranks, a goroutine each, and prints what rank 0 says.
func (f *ringFlags) together(cmd *cobra.Command, list []ringProblem, groups []ring.Group, rank func(i int, p *ringProblem) (*ringResult, error)) error {
	for at := range list {
		results, errs := make([]*ringResult, len(groups)), make([]error, len(groups))
		var done sync.WaitGroup
		for i, g := range groups {
			done.Go(func() {
				if results[i], errs[i] = rank(i, &list[at]); errs[i] != nil {
					g.Fail(errs[i])
				}
			})
		}
		done.Wait()
		if err := cmp.Or(errs...); err != nil {
			return failed(err)
		}
		if err := f.print(cmd.OutOrStdout(), results[0]); err != nil {
			return failed(err)
		}
	}
	return nil
}

// open returns what each rank computes with: its GPU, or the machine's kernels.
func (f *ringFlags) open(cmd *cobra.Command) (list []*dispatch.Dispatcher, err error) {
	if f.devices == "" {
		for range cmp.Or(f.ranks, 2) {
			d, err := f.openDispatch(cmd)
			if err != nil {
				return list, err
			}
			list = append(list, d)
		}
		return list, nil
	}
	gpus, err := f.openGPUs()
	for _, gpu := range gpus {
		list = append(list, dispatch.New(gpu))
	}
	return list, err
}

// openDispatch returns a dispatcher for the passes. The ranks merge by LSE, so all of their
// forward passes ask for it.
func (f *ringFlags) openDispatch(cmd *cobra.Command) (*dispatch.Dispatcher, error) {
	d, err := openDispatch(cmd, f.backend)
	switch {
	case err != nil:
		return nil, err
	case f.backward:
		return d.Paired(), nil
	}
	return d.Unpaired(), nil
}

// A ringResult is what rank 0 says of a problem.
type ringResult struct {
	Problem    string    `json:"problem"`
	Ranks      int       `json:"ranks"`
	Ordered    bool      `json:"ordered"`
	Backward   bool      `json:"backward"`
	Seconds    float64   `json:"seconds"`                   // the median, of the slowest rank
	One        float64   `json:"one_seconds"`               // of rank 0 alone with the whole; of GPUs of the fastest one
	Efficiency float64   `json:"efficiency"`                // one / (ranks * seconds)
	Forward    float64   `json:"forward_seconds,omitempty"` // of that, where both passes are computed
	OneForward float64   `json:"one_forward_seconds,omitempty"`
	Sent       []int64   `json:"sent_bytes"`      // by each rank
	Wait       []float64 `json:"wait_seconds"`    // of the last run, for other ranks
	Compute    []float64 `json:"compute_seconds"` // of the last run, in kernels
	Memory     int64     `json:"memory_bytes"`    // of rank 0's buffers
	Predicted  float64   `json:"predicted_seconds"`
	Worst      *float64  `json:"largest_difference,omitempty"` // over the largest value, of all ranks
}

// rank is the work of one rank.
func (f *ringFlags) rank(ctx context.Context, g ring.Group, d *dispatch.Dispatcher, p *ringProblem, stderr io.Writer) (*ringResult, error) {
	args := f.input(p)
	d = d.Frozen() // no rank changes its mind in mid-run
	args.Workers = f.workers
	r := f.result(p, g)
	if err := f.alone(ctx, g, d, p.Problem, args, r); err != nil {
		return nil, err
	}
	x, err := ring.New(g, d, f.options(g, stderr))
	if err != nil {
		return nil, err
	}
	defer x.Close()
	cut, err := ring.NewCut(p.Problem, p.seqs, g.Size(), f.ordered)
	if err != nil {
		return nil, err
	}
	shard, err := cut.Shard(g.Rank(), args)
	if err != nil {
		return nil, err
	}
	if err := f.measure(ctx, g, x, p.Problem, shard, r, nil, nil); err != nil {
		return nil, err
	}
	if f.check {
		if err := f.compare(ctx, g, cut, args, shard, r); err != nil {
			return nil, err
		}
	}
	return r, f.predict(p, r)
}

// result begins what a rank says of a problem.
func (f *ringFlags) result(p *ringProblem, g ring.Group) *ringResult {
	return &ringResult{Problem: p.String(), Ranks: g.Size(), Ordered: f.ordered, Backward: f.backward}
}

// options are those of a rank's Ring.
func (f *ringFlags) options(g ring.Group, stderr io.Writer) ring.Options {
	o := ring.Options{Ordered: f.ordered}
	if g.Rank() == 0 && !f.quiet {
		o.Progress = func(x ring.Progress) { fmt.Fprintln(stderr, ringLine(x)) }
	}
	return o
}

// input returns random arguments of the whole, with room for what the passes write. Packed
// sequences are rows of one batch.
func (f *ringFlags) input(p *ringProblem) *flashkit.Args {
	shape := p.Problem
	if p.seqs != nil {
		shape.Batch, shape.Ragged = 1, false
		shape.QLen, shape.KVLen = int(p.seqs.QStarts[p.Batch]), int(p.seqs.KVStarts[p.Batch])
	}
	args := &input.Random(shape, f.seed, input.BHSD, f.backward).Args
	f.outputs(shape, args)
	args.Seqs = p.seqs
	return args
}

// outputs adds what the passes write.
func (f *ringFlags) outputs(p flashkit.Problem, args *flashkit.Args) {
	pass := flashkit.PassForward
	if f.backward {
		pass = flashkit.PassBackward
	}
	made := flashkit.NewArgs(p, pass)
	for _, a := range flashkit.Arguments() {
		written := a.Role(&p, flashkit.PassForward) | a.Role(&p, pass)&^flashkit.Input
		if written&flashkit.Output != 0 && a.Of(args).IsZero() && a.Name != "DBias" {
			*a.Of(args) = *a.Of(made)
		}
	}
}

type passFunc = func(context.Context, flashkit.Problem, *flashkit.Args) error

func (f *ringFlags) passes(ctx context.Context, p flashkit.Problem, args *flashkit.Args, forward, backward passFunc) error {
	if err := forward(ctx, p, args); err != nil || !f.backward {
		return err
	}
	return backward(ctx, p, args)
}

func ringLine(x ring.Progress) string {
	if x.Waiting > 0 {
		return fmt.Sprintf("step %d of %d: waits for rank %d, %.0f s", x.Step, x.Steps, x.From, x.Waiting.Seconds())
	}
	return fmt.Sprintf("step %d of %d", x.Step, x.Steps)
}

func (f *ringFlags) print(w io.Writer, r *ringResult) error {
	if f.asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	fmt.Fprintf(w, "problem      %s\nranks        %d\n", r.Problem, r.Ranks)
	fmt.Fprintf(w, "time         %s, one rank alone %s: efficiency %.2f\n", terminal.Seconds(r.Seconds), terminal.Seconds(r.One), r.Efficiency)
	fmt.Fprintf(w, "predicted    %s by the model, over the link %s\n", terminal.Seconds(r.Predicted), f.link)
	fmt.Fprintf(w, "sent         %s by the rank that sent most, which waited %s after its kernels\n", terminal.Bytes(float64(slices.Max(r.Sent))), terminal.Seconds(slices.Max(r.Wait)))
	_, err := fmt.Fprintf(w, "buffers      %s on rank 0\n", terminal.Bytes(float64(r.Memory)))
	if r.Worst != nil && err == nil {
		_, err = fmt.Fprintf(w, "check        largest difference from one rank %.3g of the largest value\n", *r.Worst)
	}
	return err
}
