package input

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// DeviceTensors are a problem's tensors on the device, with a stream and two events for timing.
type DeviceTensors struct {
	Stream   *cuda.Stream
	from, to *cuda.Event
	buffers  []*cuda.Buffer
	Args     flashkit.Args
}

// Timed returns the device time of the work that launch enqueues.
func (d *DeviceTensors) Timed(ctx context.Context, launch func(context.Context) error) (time.Duration, error) {
	if err := d.Stream.Record(d.from); err != nil {
		return 0, err
	}
	if err := launch(ctx); err != nil {
		return 0, err
	}
	if err := errors.Join(d.Stream.Record(d.to), d.to.Sync()); err != nil {
		return 0, err
	}
	return d.to.Since(d.from)
}

// Fill copies the inputs to the device and allocates the outputs. If DO is among the inputs, Fill
// also computes O and LSE for the backward pass.
func (d *DeviceTensors) Fill(ctx context.Context, gpu *cuda.Backend, t *Tensors) (err error) {
	if d.Stream, err = gpu.NewStream(); err != nil {
		return err
	}
	if d.from, err = gpu.NewEvent(); err != nil {
		return err
	}
	if d.to, err = gpu.NewEvent(); err != nil {
		return err
	}
	d.Args.Seed, d.Args.Origin, d.Args.Seqs = t.Args.Seed, t.Args.Origin, t.Args.Seqs
	for _, a := range flashkit.Arguments() {
		from, to := a.Of(&t.Args), a.Of(&d.Args)
		if from.IsZero() {
			continue
		}
		if *to, err = d.upload(gpu, from); err != nil {
			return fmt.Errorf("%s of %s: %w", a.Name, terminal.Bytes(float64(from.Len()*from.DType().Size())), err)
		}
	}
	if !t.Args.DO.IsZero() {
		return errors.Join(gpu.Forward(ctx, d.Stream, t.Problem, &d.Args), d.Stream.Sync())
	}
	return nil
}

// upload copies a tensor to the device, gaps between rows included.
func (d *DeviceTensors) upload(gpu *cuda.Backend, t *flashkit.Tensor) (flashkit.Tensor, error) {
	m, err := gpu.Alloc(t.Len() * t.DType().Size())
	if err != nil {
		return flashkit.Tensor{}, err
	}
	d.buffers = append(d.buffers, m)
	s, st := t.Shape(), t.Strides()
	there := m.Tensor(t.DType(), 0, s[0], s[1], s[2], s[3]).WithStrides(st[0], st[1], st[2])
	return there, cuda.UploadTensor(d.Stream, m, *t)
}

// Close frees the device tensors, if any.
func (t *Tensors) Close() error {
	d := t.Device
	if d == nil {
		return nil
	}
	t.Device = nil
	var errs []error
	for _, m := range d.buffers {
		errs = append(errs, m.Free())
	}
	for _, e := range []*cuda.Event{d.from, d.to} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	if d.Stream != nil {
		errs = append(errs, d.Stream.Close())
	}
	return errors.Join(errs...)
}
