package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// A Place holds the tensors of flashrun run, on the host or a GPU, and the dispatcher that chooses
// the kernels.
type Place struct {
	Dispatch *dispatch.Dispatcher
	Args     *flashkit.Args // arguments of kernel calls, on the host or the GPU

	GPU     *cuda.Backend // nil on the host
	Tensors input.Tensors // on the GPU
}

// OnGPU returns the place on a GPU. name restricts dispatch to a kernel or to a backend's kernels;
// "auto" is no restriction.
func OnGPU(gpu *cuda.Backend, name string) (*Place, error) {
	all := dispatch.New(gpu)
	d, err := all.With(name)
	if err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return &Place{Dispatch: d.Frozen(), GPU: gpu}, nil
}

// Close closes the dispatcher and frees device memory.
func (d *Place) Close() error { return errors.Join(d.Tensors.Close(), d.Dispatch.Close()) }

// Memory returns the memory field of the JSON.
func (d *Place) Memory() string {
	if d.GPU == nil {
		return ""
	}
	return machine.Device
}

// Put copies the tensors to the GPU, if there is one.
func (d *Place) Put(ctx context.Context, w *input.Work) error {
	if d.Args = &w.Args; d.GPU == nil {
		return nil
	}
	d.Tensors = input.Tensors{Problem: w.Problem, Args: w.Args, Device: new(input.DeviceTensors)}
	if err := d.Tensors.Device.Fill(ctx, d.GPU, &d.Tensors); err != nil {
		return fmt.Errorf("tensors on the device: %w", err)
	}
	d.Args = &d.Tensors.Device.Args
	return nil
}

// Pick returns the kernel that dispatch chooses for the tensors, and the reason. On a GPU, Pick
// runs the pass once to see which kernel dispatch chooses.
func (d *Place) Pick(ctx context.Context, p flashkit.Problem, s flashkit.Pass) (m Measurement, err error) {
	if d.GPU == nil {
		if m.Kernel, err = d.Dispatch.Pick(p, s); err != nil {
			return m, err
		}
		m.Reason = ReasonFor(d.Dispatch, p, s)
		return m, nil
	}
	ran := ""
	watched := d.Dispatch.WithObserver(func(r dispatch.Ran) { ran = r.Kernel })
	run := watched.Forward
	if s == flashkit.PassBackward {
		run = watched.Backward
	}
	if err := run(ctx, p, d.Args); err != nil {
		return m, err
	}
	gpu := d.GPU.Device()
	for _, k := range d.Dispatch.Kernels() {
		if k.Name == ran {
			m.Kernel, m.Reason = k, "chosen for tensors on "+gpu.String()
		}
	}
	return m, nil
}

// Finish leaves the result of a single call in w's host tensors. With Carry, each timed call has
// continued the result of the previous call. Finish then restores the initial O and LSE and calls
// the kernel once.
func (d *Place) Finish(ctx context.Context, w *input.Work, m *Measurement) error {
	p := w.Problem
	if p.Carry {
		w.Restart(&w.Args)
		if d.GPU != nil {
			for _, a := range []struct{ host, device flashkit.Tensor }{{w.Args.O, d.Args.O}, {w.Args.LSE, d.Args.LSE}} {
				if err := cuda.UploadTensor(d.Tensors.Device.Stream, a.device.Owner().(*cuda.Buffer), a.host); err != nil {
					return err
				}
			}
		}
		if err := m.Kernel.Compute(ctx, p, d.Args); err != nil {
			return err
		}
	}
	if d.GPU == nil {
		return nil
	}
	for _, a := range flashkit.Arguments() {
		if a.Role(&p, m.Kernel.Pass)&flashkit.Output == 0 {
			continue
		}
		if err := cuda.DownloadTensor(d.Tensors.Device.Stream, *a.Of(&w.Args), a.Of(d.Args).Owner().(*cuda.Buffer)); err != nil {
			return fmt.Errorf("%s from the device: %w", strings.ToLower(a.Name), err)
		}
	}
	return nil
}

// Learn passes the times of a run with host tensors to dispatch. It comes after the last pass: the
// time of the forward pass would otherwise change the choice of the backward kernel, which dispatch
// pairs with the forward kernel.
func (d *Place) Learn(p flashkit.Problem, list []Measurement) {
	if d.GPU != nil {
		return
	}
	for _, m := range list {
		Learn(d.Dispatch, m.Kernel, p, m.Median)
	}
}
