package main

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

// benchOf returns a bench of the passes, with tensors in the memories. open opens it.
func benchOf(how settings, passes []flashkit.Pass, memories []string, baseline bool) *bench {
	b := &bench{settings: how, passes: passes, memories: memories, order: rand.New(rand.NewPCG(how.Seed, 1))}
	if baseline {
		b.baseline = naiveKernels()
	}
	return b
}

// open opens the backends and admits the kernels of a list with commas, such as --backend gives.
func (b *bench) open(ctx context.Context, choice string) error {
	names := strings.Split(choice, ",")
	for i := range names {
		if names[i] == "all" {
			names[i] = "auto"
		}
	}
	var err error
	if b.dispatch, err = dispatch.Open(ctx, names...); err != nil {
		var wrong *flashkit.ProblemError // names the one of them that there is not
		if errors.As(err, &wrong) {
			choice = fmt.Sprint(wrong.Value)
		}
		return fmt.Errorf("--backend %s: %w", choice, err)
	}
	b.inputs = input.NewMaker(b.dispatch, b.settings.Seed)
	seen := map[string]bool{}
	for _, name := range names {
		d, err := b.dispatch.With(name)
		if err != nil {
			b.dispatch.Close()
			return fmt.Errorf("--backend %s: %w", name, err)
		}
		for _, k := range d.Kernels() {
			if !seen[k.Name] {
				seen[k.Name] = true
				b.kernels = append(b.kernels, k)
			}
		}
	}
	b.gpu = besideDispatch(ctx, b.dispatch)
	b.results = &results{Format: resultsFormat, Started: time.Now().UTC().Truncate(time.Second), Machine: machine.Describe(b.dispatch, b.gpu),
		Settings: b.settings, Limits: []machine.Limit{}, Results: []result{}}
	return nil
}

// besideDispatch opens the GPU again, for what only its backend offers, nil if dispatch has none.
func besideDispatch(ctx context.Context, d *dispatch.Dispatcher) *cuda.Backend {
	if !slices.ContainsFunc(d.Kernels(), func(k flashkit.Kernel) bool { return backendOf(k.Name) == "cuda" }) {
		return nil
	}
	gpu, err := cuda.OpenContext(ctx)
	if err != nil {
		return nil
	}
	return gpu
}

func (b *bench) close() error {
	var err error
	if b.gpu != nil {
		err = b.gpu.Close()
	}
	return errors.Join(err, b.dispatch.Close())
}

// affordable refuses a problem that does not fit into memory.
func (b *bench) affordable(p flashkit.Problem) error {
	if err := machine.Affordable("the tensors of "+p.String(), input.Bytes(p, b.backward())); err != nil {
		return err
	}
	for _, k := range b.baseline {
		if err := b.roomFor(p, k); err != nil {
			return fmt.Errorf("--baseline %s: %w", naiveBaseline, err)
		}
	}
	return nil
}

// possible refuses a bench without a single case.
func (b *bench) possible(problems []flashkit.Problem) error {
	for _, p := range problems {
		if _, cases := b.expect(p); cases > 0 {
			return nil
		}
	}
	b.skip(problems[0], b.passes[0])
	return fmt.Errorf("no kernel takes any of the problems; %s: %s", problems[0], b.results.Skipped[0].Error)
}

// roomFor refuses a problem whose matrices do not fit into memory beside its tensors.
func (b *bench) roomFor(p flashkit.Problem, k flashkit.Kernel) error {
	if !slices.Contains(b.passes, k.Pass) {
		return nil
	}
	return machine.Affordable("the tensors and matrices of "+p.String(), input.Bytes(p, b.backward())+k.Needs(p.Ask(k.Pass)).Host)
}

// verdict returns an error if the measurement ended early, or if kernels failed.
func (b *bench) verdict(ended error) error {
	if ended != nil {
		return fmt.Errorf("the measurement ended after %d of %d cases: %w", len(b.results.Results), b.plan.cases, ended)
	}
	if n := len(b.results.Failures); n > 0 {
		f := b.results.Failures[0]
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

// openDevice prepares a case on the device's memory.
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

func (b *bench) backward() bool { return slices.Contains(b.passes, flashkit.PassBackward) }
