package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// A place is where flashrun run has its tensors, and who chooses kernels for them: on the
// host, or on a GPU, which alone computes with them.
type place struct {
	dispatch *dispatch.Dispatcher
	args     *flashkit.Args // what kernels get

	gpu     *cuda.Backend // nil on the host
	tensors input.Tensors // there
}

// onGPU returns the place on a GPU, where kernels of that name run, or for auto any.
func onGPU(gpu *cuda.Backend, name string) (*place, error) {
	all := dispatch.New(gpu)
	d, err := all.With(name)
	if err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return &place{dispatch: d.Frozen(), gpu: gpu}, nil
}

func (d *place) close() error { return errors.Join(d.tensors.Close(), d.dispatch.Close()) }

// memory returns what the JSON says of the place.
func (d *place) memory() string {
	if d.gpu == nil {
		return ""
	}
	return machine.Device
}

// put brings the tensors to where they are to be.
func (d *place) put(ctx context.Context, w *input.Work) error {
	if d.args = &w.Args; d.gpu == nil {
		return nil
	}
	d.tensors = input.Tensors{Problem: w.Problem, Args: w.Args, Device: new(input.DeviceTensors)}
	if err := d.tensors.Device.Fill(ctx, d.gpu, &d.tensors); err != nil {
		return fmt.Errorf("tensors on the device: %w", err)
	}
	d.args = &d.tensors.Device.Args
	return nil
}

// pick returns the kernel that dispatch chooses for the tensors, and why.
func (d *place) pick(ctx context.Context, p flashkit.Problem, s flashkit.Pass) (m bench.Measurement, err error) {
	if d.gpu == nil {
		if m.Kernel, err = d.dispatch.Pick(p, s); err != nil {
			return m, err
		}
		m.Reason = bench.ReasonFor(d.dispatch, p, s)
		return m, nil
	}
	ran := ""
	watched := d.dispatch.WithObserver(func(r dispatch.Ran) { ran = r.Kernel })
	run := watched.Forward
	if s == flashkit.PassBackward {
		run = watched.Backward
	}
	if err := run(ctx, p, d.args); err != nil {
		return m, err
	}
	gpu := d.gpu.Device()
	for _, k := range d.dispatch.Kernels() {
		if k.Name == ran {
			m.Kernel, m.Reason = k, "chosen for tensors on "+gpu.String()
		}
	}
	return m, nil
}

// finish makes the result that of one call, where every call continues the one before,
// and brings it back to the host. On the host dispatch learns what the calls took.
func (d *place) finish(ctx context.Context, w *input.Work, m *bench.Measurement) error {
	p := w.Problem
	if p.Carry {
		w.Restart(&w.Args)
		if d.gpu != nil {
			for _, a := range []struct{ host, device flashkit.Tensor }{{w.Args.O, d.args.O}, {w.Args.LSE, d.args.LSE}} {
				if err := cuda.UploadTensor(d.tensors.Device.Stream, a.device.Owner().(*cuda.Buffer), a.host); err != nil {
					return err
				}
			}
		}
		if err := m.Kernel.Compute(ctx, p, d.args); err != nil {
			return err
		}
	}
	if d.gpu == nil {
		bench.Learn(d.dispatch, m.Kernel, p, m.Median)
		return nil
	}
	for _, a := range flashkit.Arguments() {
		if a.Role(&p, m.Kernel.Pass)&flashkit.Output == 0 {
			continue
		}
		if err := cuda.DownloadTensor(d.tensors.Device.Stream, *a.Of(&w.Args), a.Of(d.args).Owner().(*cuda.Buffer)); err != nil {
			return fmt.Errorf("%s from the device: %w", strings.ToLower(a.Name), err)
		}
	}
	return nil
}
