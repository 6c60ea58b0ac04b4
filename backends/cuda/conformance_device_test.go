package cuda

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
)

// onDevice is the backend for programs with tensors on the GPU. Its kernels copy every tensor there
// with its gaps between rows, run, and copy the outputs back. Calls with an odd number of query
// rows use Launch, others Kernel.Compute.
type onDevice struct {
	*Backend
	few bool // one kernel for each launch path
}

func (b onDevice) Kernels() []flashkit.Kernel {
	kernels := slices.DeleteFunc(b.Backend.Kernels(), func(k flashkit.Kernel) bool {
		return b.few && !slices.Contains([]string{"cuda/fwd_sm90", "cuda/decode_sm80", "cuda/bwd_sm80"}, k.Name)
	})
	for i, k := range kernels {
		kernels[i].Run = func(ctx context.Context, c *flashkit.Call) error { return b.run(ctx, k, c) }
	}
	return kernels
}

func (b onDevice) run(ctx context.Context, k flashkit.Kernel, c *flashkit.Call) (err error) {
	s, err := b.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p, args := c.Problem, *c.Args
	p.Heads = args.Q.Shape()[1] // Do lowers it where there are no query rows
	for i := range allArguments {
		t := allArguments[i].Of(&args)
		if allArguments[i].Role(&p, c.Pass) == 0 || t.IsZero() {
			continue
		}
		m, err := b.Alloc(max(1, t.Len()*t.DType().Size()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Free()) }()
		if err := UploadTensor(s, m, *t); err != nil {
			return err
		}
		at, x := t.Strides(), t.Shape()
		*t = m.Tensor(t.DType(), 0, x[0], x[1], x[2], x[3]).WithStrides(at[0], at[1], at[2])
	}
	if p.QLen%2 == 0 {
		err = k.Compute(ctx, p, &args)
	} else {
		err = b.Launch(ctx, s, p, k.Pass, &args, Options{Kernel: k.Name})
	}
	if err != nil {
		return err
	}
	for i := range allArguments {
		a := &allArguments[i]
		if t := a.Of(&args); a.Role(&p, c.Pass)&flashkit.Output != 0 && !t.IsZero() {
			if err := DownloadTensor(s, *a.Of(c.Args), buffer(*t)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tensors on the GPU reach the kernels another way than tensors on the host.
func TestConformanceOnDevice(t *testing.T) {
	b, err := Open()
	if err != nil {
		conformance.Unavailable(t, "cuda", err)
	}
	defer b.Close()
	conformance.Run(t, onDevice{b, testing.Short()})
}

func TestConformanceOnFakeDevice(t *testing.T) {
	b, _ := openFake(t)
	b.eager = true
	conform(t, onDevice{b, true}, false) // TestConformanceOnFake has all kernels
}
