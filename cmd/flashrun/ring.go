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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/ranks"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
	"github.com/flashkit-go/flashkit/ring/nccl"
)

type ringFlags struct {
	how                ranks.Run
	pass               passList
	problems           []string
	lengths            []int
	backend, transport string
	devices            []int
	ranks              int
	asJSON, quiet      bool
	hosted             bool
	timeout            time.Duration
}

// ringName is the name of the only command that accepts several GPUs.
const ringName = "ring"

func newRing() *cobra.Command {
	f := &ringFlags{pass: passList{flashkit.PassForward}}
	cmd := &cobra.Command{
		Use:   ringName + " --problem NAME",
		Short: "Compute one problem over many ranks: goroutines, GPUs, or processes of MPI",
		Long: `Ring cuts a random problem for the ranks that it finds, computes it over them, and
prints the time, the efficiency beside one rank, the bytes that each rank sent and
how much of their time kernels hid, with what the model of a step predicts.

Started by mpiexec it is one of its ranks; with --transport nccl its tensors lie on
the GPU with the rank's number on its machine, and NCCL moves them. Else --ranks says how many goroutines to
take, which share the processors of this machine, or --device which GPUs: their
tensors lie there and travel between them, or with --host lie in the host's memory.
With --check every rank compares its rows with what one rank computes.`,
		Example: `  flashrun ring --problem b1-h8-g2-n4096-m4096-d64-f32-causal --ranks 2 --check
  flashrun ring --problem b1-h32-g8-n65536-m65536-d128-bf16-causal --device 0,1 --pass fwd,bwd
  flashrun ring --problem b1-h32-g8-n1-m1-d128-bf16-causal --lengths 40000,9000,700 --device 0,1
  mpiexec -n 4 flashrun ring --problem b1-h8-g8-n8192-m8192-d128-f32 --pass fwd,bwd --json
  mpiexec -n 8 flashrun ring --problem b1-h32-g8-n65536-m65536-d128-bf16-causal --transport nccl`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.problems, "problem", nil, "`name` of the problem of the whole, or several with commas")
	flags.IntSliceVar(&f.lengths, "lengths", nil, "`rows` of packed sequences with commas, in place of the problem's batches and lengths")
	flags.IntVar(&f.ranks, "ranks", 0, "goroutines that are ranks, where no mpiexec says how many there are (default 2)")
	flags.StringVar(&f.transport, "transport", transportAuto, "`name` of what moves tensors of GPUs: peer, nccl, or auto, which is peer")
	flags.BoolVar(&f.hosted, "host", false, "tensors of GPUs lie in the host's memory")
	addPassFlag(cmd, &f.pass, "a `list` of passes: fwd, or fwd,bwd for both")
	flags.BoolVar(&f.how.Ordered, "ordered", false, "gather K and V first, for the bits of one rank")
	flags.BoolVar(&f.how.Check, "check", false, "compare with what one rank computes")
	flags.IntVar(&f.how.Runs, "runs", 3, "how many times to compute; the median counts")
	flags.IntVar(&f.how.Workers, "workers", 0, "goroutines of each rank's kernels; 0 is no limit")
	flags.StringVar(&f.how.Link, "link", "shared", "`name` of the link that the model supposes")
	flags.Uint64Var(&f.how.Seed, "seed", 1, "of the random input")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long a rank waits in all")
	flags.BoolVar(&f.asJSON, "json", false, "print a JSON object")
	flags.BoolVar(&f.quiet, "quiet", false, "no progress on stderr")
	addBackendFlag(cmd, &f.backend, "the backend or kernel of each rank")
	cmd.RegisterFlagCompletionFunc("transport", cobra.FixedCompletions(transports, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *ringFlags) run(cmd *cobra.Command) error {
	f.how.Backward = f.pass.backward()
	list, err := f.parse()
	if err == nil {
		f.devices, err = devices(cmd)
	}
	switch {
	case err != nil:
		return err
	case f.hosted && len(f.devices) == 0:
		return errors.New("--host: says where the tensors of --device lie, which names none")
	case len(f.devices) > 0 && f.ranks != 0:
		return fmt.Errorf("--device %s: says how many ranks there are, as --ranks %d does", cmd.Flag("device").Value, f.ranks)
	case cmd.Flags().Changed("ranks") && f.ranks < 1:
		return fmt.Errorf("--ranks %d: must be at least 1", f.ranks)
	case f.how.Runs < 1 || f.how.Workers < 0:
		return fmt.Errorf("--runs %d, --workers %d: must not be negative, and at least one run", f.how.Runs, f.how.Workers)
	}
	if _, err := ring.LinkOf(f.how.Link); err != nil {
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
	f.how.NCCL = f.transport == transportNCCL
	f.how.Print = func(r *ranks.Result) error { return f.print(cmd.OutOrStdout(), r) }
	if !f.quiet {
		f.how.Progress = cmd.ErrOrStderr()
	}
	onGPUs := launch.Size > 1 && f.how.NCCL || launch.Size == 1 && len(f.devices) > 0 && !f.hosted
	if onGPUs && !cmd.Flags().Changed("link") {
		f.how.Link = "nvlink4"
	}
	switch {
	case launch.Size > 1 && f.how.NCCL:
		return f.overNCCL(ctx, cmd, list, launch)
	case onGPUs:
		return f.overGPUs(ctx, list)
	case launch.Size == 1:
		return f.overGoroutines(ctx, cmd, list)
	case f.ranks != 0 && f.ranks != launch.Size:
		return fmt.Errorf("--ranks %d: %s started %d", f.ranks, launch.Launcher, launch.Size)
	}
	return f.overProcesses(ctx, cmd, list)
}

// overNCCL runs this process as one rank, with its tensors on one GPU. The ranks communicate
// through NCCL.
func (f *ringFlags) overNCCL(ctx context.Context, cmd *cobra.Command, list []ranks.Problem, launch ring.Launch) error {
	if launch.Launcher == "MPI" {
		if watched, err := watch(cmd); watched {
			return err
		}
	}
	device, err := f.localDevice(launch)
	if err != nil {
		return err
	}
	if _, err := nccl.Version(nccl.Options{}); err != nil {
		return err
	}
	gpu, err := cuda.OpenDevice(device)
	if err != nil {
		return err
	}
	return failed(f.how.OverNCCL(ctx, list, gpu, launch))
}

// overGPUs runs all ranks in this process. Each rank has its tensors on its own GPU.
func (f *ringFlags) overGPUs(ctx context.Context, list []ranks.Problem) (err error) {
	gpus, err := f.openGPUs()
	defer func() {
		for _, gpu := range gpus {
			err = errors.Join(err, gpu.Close())
		}
	}()
	if err != nil {
		return err
	}
	return failed(f.how.OverGPUs(ctx, list, gpus))
}

// overGoroutines runs each rank as a goroutine of this process, with its tensors in the host's
// memory.
func (f *ringFlags) overGoroutines(ctx context.Context, cmd *cobra.Command, list []ranks.Problem) error {
	runners, err := f.open(cmd)
	defer func() {
		for _, d := range runners {
			d.Close()
		}
	}()
	if err != nil {
		return err
	}
	return failed(f.how.OverGoroutines(ctx, list, runners))
}

// overProcesses runs this process as one rank of MPI, with its tensors in the host's memory.
func (f *ringFlags) overProcesses(ctx context.Context, cmd *cobra.Command, list []ranks.Problem) error {
	if watched, err := watch(cmd); watched {
		return err
	}
	if len(f.devices) == 1 { // all ranks on this machine share the GPU
		if err := os.Setenv(cuda.DeviceVariable, fmt.Sprint(f.devices[0])); err != nil {
			return err
		}
	}
	d, err := f.openDispatch(cmd)
	if err != nil {
		return err
	}
	defer d.Close()
	return failed(f.how.OverProcesses(ctx, list, d))
}

// watch reruns flashrun in a child process if an MPI launcher started this process. It then waits
// for the child and returns true. If the child failed, watch also prints and returns an error. In
// the child itself, and without a launcher, watch returns false.
func watch(cmd *cobra.Command) (watched bool, err error) {
	status, watched := mpi.Watch(cmd.ErrOrStderr())
	if watched && status != 0 {
		err = failed(fmt.Errorf("the rank ended with status %d", status))
	}
	return watched, err
}

func (f *ringFlags) parse() (list []ranks.Problem, err error) {
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
		case f.how.Backward && missing != 0:
			return nil, fmt.Errorf("--pass fwd,bwd: %v has no backward pass", missing)
		}
		x := ranks.Problem{Problem: p}
		if f.lengths != nil {
			x.Seqs, err = packedLengths(f.lengths)
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

// packedLengths returns packed sequences of the given lengths.
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

// open returns one dispatcher per rank. With --device, a dispatcher has the kernels of the rank's
// GPU, otherwise the kernels of --backend.
func (f *ringFlags) open(cmd *cobra.Command) (list []*dispatch.Dispatcher, err error) {
	if len(f.devices) == 0 {
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

// openDispatch returns a dispatcher for the passes of --pass. Every forward pass returns LSE,
// because ranks merge their results by LSE. So dispatch cannot infer from LSE whether a backward
// pass follows. openDispatch calls Paired or Unpaired to tell dispatch.
func (f *ringFlags) openDispatch(cmd *cobra.Command) (*dispatch.Dispatcher, error) {
	d, err := openDispatch(cmd, f.backend)
	switch {
	case err != nil:
		return nil, err
	case f.how.Backward:
		return d.Paired(), nil
	}
	return d.Unpaired(), nil
}

func (f *ringFlags) openGPUs() (list []*cuda.Backend, err error) {
	for _, n := range f.devices {
		gpu, err := cuda.OpenDevice(n)
		if err != nil {
			return list, err
		}
		list = append(list, gpu)
	}
	return list, nil
}

// The values of --transport: the ways to move tensors between ranks on GPUs. auto means peer.
const (
	transportAuto = "auto"
	transportPeer = "peer"
	transportNCCL = "nccl"
)

var transports = []string{transportAuto, transportPeer, transportNCCL}

// localDevice returns the number of this process's GPU. Rank n of this machine uses entry n of
// --device. Without --device the rank uses GPU n.
func (f *ringFlags) localDevice(launch ring.Launch) (int, error) {
	switch n := len(f.devices); {
	case n == 0:
		return launch.Local, nil
	case launch.Local >= n:
		return 0, fmt.Errorf("--device: names %d, rank %d is number %d of its machine", n, launch.Rank, launch.Local)
	}
	return f.devices[launch.Local], nil
}

// checkTransport returns an error if the transport is unknown or does not fit the other flags and
// the launcher.
func (f *ringFlags) checkTransport(launch ring.Launch) error {
	switch {
	case f.transport == transportAuto:
		return nil
	case f.transport != transportPeer && f.transport != transportNCCL:
		return fmt.Errorf("--transport %q: must be one of %s", f.transport, strings.Join(transports, ", "))
	case f.hosted:
		return fmt.Errorf("--transport %s: moves tensors of GPUs, which --host leaves on the host", f.transport)
	case f.transport == transportPeer && launch.Size > 1:
		return fmt.Errorf("--transport peer: is for the GPUs of one process, and %s started %d", launch.Launcher, launch.Size)
	case launch.Size == 1 && len(f.devices) == 0:
		return fmt.Errorf("--transport %s: needs the GPUs of --device, or a launcher's processes", f.transport)
	}
	return nil
}

func (f *ringFlags) print(w io.Writer, r *ranks.Result) error {
	if f.asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	return r.WriteText(w, f.how.Link)
}
