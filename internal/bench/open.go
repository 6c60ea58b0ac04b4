package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// New returns a Run that measures the passes with tensors in the memories, host or device. The
// caller calls Run.Open next.
func New(how Settings, passes []flashkit.Pass, memories []string, baseline bool) *Run {
	b := &Run{settings: how, Passes: passes, memories: memories, order: rand.New(rand.NewPCG(how.Seed, 1))}
	if baseline {
		b.baseline = naiveKernels()
	}
	return b
}

// Open opens the backends and selects the kernels of choice, the comma-separated list of --backend.
func (b *Run) Open(ctx context.Context, choice string) error {
	names := strings.Split(choice, ",")
	for i := range names {
		if names[i] == "all" {
			names[i] = "auto"
		}
	}
	var err error
	if b.Dispatch, err = dispatch.Open(ctx, names...); err != nil {
		var wrong *flashkit.ProblemError // its Value is the unknown name
		if errors.As(err, &wrong) {
			choice = fmt.Sprint(wrong.Value)
		}
		return fmt.Errorf("--backend %s: %w", choice, err)
	}
	b.inputs = input.NewMaker(b.Dispatch, b.settings.Seed)
	seen := map[string]bool{}
	for _, name := range names {
		d, err := b.Dispatch.With(name)
		if err != nil {
			b.Dispatch.Close()
			return fmt.Errorf("--backend %s: %w", name, err)
		}
		for _, k := range d.Kernels() {
			if !seen[k.Name] {
				seen[k.Name] = true
				b.kernels = append(b.kernels, k)
			}
		}
	}
	b.gpu = OpenGPU(ctx, b.Dispatch)
	b.Results = &Results{Format: Format, Started: time.Now().UTC().Truncate(time.Second), Machine: machine.Describe(b.Dispatch, b.gpu),
		Settings: b.settings, Limits: []machine.Limit{}, Results: []Result{}}
	return nil
}

// OpenGPU opens the GPU again, for calls of package cuda. It returns nil if d has no cuda kernels,
// or if the GPU cannot be opened.
func OpenGPU(ctx context.Context, d *dispatch.Dispatcher) *cuda.Backend {
	if !slices.ContainsFunc(d.Kernels(), func(k flashkit.Kernel) bool { return BackendOf(k.Name) == "cuda" }) {
		return nil
	}
	gpu, err := cuda.OpenContext(ctx)
	if err != nil {
		return nil
	}
	return gpu
}

// Close closes the GPU and the dispatcher.
func (b *Run) Close() error {
	var err error
	if b.gpu != nil {
		err = b.gpu.Close()
	}
	return errors.Join(err, b.Dispatch.Close())
}

// Affordable returns an error if the problem's tensors exceed free memory, alone or with the
// baseline's matrices.
func (b *Run) Affordable(p flashkit.Problem) error {
	if err := machine.Affordable("the tensors of "+p.String(), input.Bytes(p, b.backward())); err != nil {
		return err
	}
	for _, k := range b.baseline {
		if err := b.roomFor(p, k); err != nil {
			return fmt.Errorf("--baseline %s: %w", Naive, err)
		}
	}
	return nil
}

// Possible returns an error if no kernel fits any of the problems.
func (b *Run) Possible(problems []flashkit.Problem) error {
	for _, p := range problems {
		if _, cases := b.expect(p); cases > 0 {
			return nil
		}
	}
	b.skip(problems[0], b.Passes[0])
	return fmt.Errorf("no kernel takes any of the problems; %s: %s", problems[0], b.Results.Skipped[0].Error)
}

// roomFor returns an error if the tensors and the baseline's matrices exceed free memory.
func (b *Run) roomFor(p flashkit.Problem, k flashkit.Kernel) error {
	if !slices.Contains(b.Passes, k.Pass) {
		return nil
	}
	return machine.Affordable("the tensors and matrices of "+p.String(), input.Bytes(p, b.backward())+k.Needs(p.Ask(k.Pass)).Host)
}

// Verdict returns an error if the measurement ended early, or if kernels failed.
func (b *Run) Verdict(ended error) error {
	if ended != nil {
		return &Unfinished{fmt.Sprintf("%d of %d cases", len(b.Results.Results), b.plan.cases), ended}
	}
	if n := len(b.Results.Failures); n > 0 {
		f := b.Results.Failures[0]
		return fmt.Errorf("%d cases failed, the first one was %s on %s: %s", n, f.Kernel, f.Problem, f.Error)
	}
	return nil
}

func typesOf(problems []flashkit.Problem) (list []flashkit.DType) {
	for _, p := range problems {
		if !slices.Contains(list, p.DType) {
			list = append(list, p.DType)
		}
	}
	return list
}

func openDevice(ctx context.Context, t *input.Tensors, gpu *cuda.Backend, k flashkit.Kernel) (*timedCase, error) {
	if t.Device == nil {
		t.Device = new(input.DeviceTensors)
		if err := t.Device.Fill(ctx, gpu, t); err != nil {
			err = errors.Join(err, t.Close())
			return nil, fmt.Errorf("tensors on the device: %w", err)
		}
	}
	d, p := t.Device, t.Problem
	launch := func(ctx context.Context) error {
		return gpu.Launch(ctx, d.Stream, p, k.Pass, &d.Args, cuda.Options{Kernel: k.Name})
	}
	return &timedCase{problem: p, kernel: k, memory: machine.Device, flops: p.FLOPs(k.Pass), close: func() error { return nil },
		call: func(ctx context.Context) (time.Duration, error) { return d.Timed(ctx, launch) }}, nil
}

func (b *Run) backward() bool { return slices.Contains(b.Passes, flashkit.PassBackward) }

// Open opens the backends that name needs. name is a kernel, a backend or "auto". opened has all
// kernels of these backends, and the caller closes opened. chosen has only the kernels that name
// admits.
func Open(ctx context.Context, name string) (opened, chosen *dispatch.Dispatcher, err error) {
	if opened, err = dispatch.Open(ctx, name); err != nil {
		return nil, nil, err
	}
	if chosen, err = opened.With(name); err != nil {
		opened.Close()
		return nil, nil, err
	}
	return opened, chosen, nil
}

// BackendOf returns the backend in a kernel's name.
func BackendOf(kernel string) string {
	backend, _, _ := strings.Cut(kernel, "/")
	return backend
}

// An Unfinished is the error of a measurement that ended early.
type Unfinished struct {
	Done string // such as "3 of 5 cases"
	Err  error  // the cause
}

func (u *Unfinished) Error() string {
	return "the measurement ended after " + u.Done + ": " + u.Err.Error()
}

func (u *Unfinished) Unwrap() error { return u.Err }

// Interruption returns the message of a canceled command. If err is or wraps an Unfinished, the
// message contains the progress of the measurement.
func Interruption(err error) string {
	var u *Unfinished
	if errors.As(err, &u) {
		return "interrupted after " + u.Done
	}
	return "interrupted"
}
