package encoder

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/cublas"
)

// A cudaMachine is a GPU with cuBLAS for the products.
type cudaMachine struct {
	backend *cuda.Backend
	stream  *cuda.Stream
	blas    cublas.Handle
	product cublas.Product // of a call
}

// openGPU returns the GPU of a backend. It returns an error that wraps cublas.ErrMissing if there is
// no cuBLAS.
func openGPU(b *cuda.Backend) (*gpu, error) {
	library, err := cublas.Open(os.Getenv(cublas.Variable))
	if err != nil {
		return nil, err
	}
	m := &cudaMachine{backend: b}
	if m.stream, err = b.NewStream(); err != nil {
		return nil, err
	}
	if err := b.Within(func() (err error) {
		m.blas, err = library.NewHandle(uintptr(m.stream.Handle()))
		return err
	}); err != nil {
		return nil, errors.Join(err, m.stream.Close())
	}
	v := m.blas.Version()
	return newGPU(m, fmt.Sprintf("%s with cuBLAS %d.%d.%d (%s)", b.Device().Name, v/10000, v/100%100, v%100, library.Name())), nil
}

func (m *cudaMachine) alloc(bytes int) (area, error) {
	b, err := m.backend.Alloc(bytes)
	if err != nil {
		return nil, err // not a nil *cuda.Buffer in an area
	}
	return b, nil
}

func (m *cudaMachine) upload(to area, src []float32) error {
	return cuda.Upload(m.stream, to.(*cuda.Buffer), 0, src)
}

func (m *cudaMachine) uploadInts(to area, src []int32) error {
	return cuda.Upload(m.stream, to.(*cuda.Buffer), 0, src)
}

func (m *cudaMachine) download(dst []float32, from area) error {
	return cuda.Download(m.stream, dst, from.(*cuda.Buffer), 0)
}

func (m *cudaMachine) multiply(c, a, w flashkit.Tensor, add bool) error {
	m.product = cublas.Product{
		C: c.Address(), A: a.Address(), W: w.Address(), CStride: c.Strides()[2], AStride: a.Strides()[2],
		Rows: a.Shape()[2], In: w.Shape()[3], Out: w.Shape()[2], Add: add,
	}
	return m.backend.Within(m.run)
}

func (m *cudaMachine) run() error { return m.blas.Multiply(&m.product) }

func (m *cudaMachine) normalize(y, x flashkit.Tensor, n *cuda.Norm) error {
	return m.stream.Normalize(y, x, n)
}

func (m *cudaMachine) activate(y, x, bias flashkit.Tensor, f cuda.Activation, gated bool) error {
	return m.stream.Activate(y, x, bias, f, gated)
}

func (m *cudaMachine) rotate(x, table flashkit.Tensor, positions area) error {
	return m.stream.Rotate(x, table, positions.(*cuda.Buffer))
}

func (m *cudaMachine) add(y, x flashkit.Tensor) error { return m.stream.Add(y, y, x) }

func (m *cudaMachine) attend(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return m.backend.Forward(ctx, m.stream, p, args)
}

func (m *cudaMachine) close() error {
	return errors.Join(m.backend.Within(m.blas.Close), m.stream.Close())
}
