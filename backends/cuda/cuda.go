// Package cuda computes attention on an NVIDIA GPU, reached through the driver
// that it finds at run time. Its kernels are still to come; Open says so.
package cuda

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A Backend runs attention on one NVIDIA GPU.
type Backend struct{}

// Open returns the GPU backend, or an error that wraps
// flashkit.ErrUnavailable.
func Open() (*Backend, error) {
	return nil, fmt.Errorf("cuda: %w: this version has no CUDA kernel", flashkit.ErrUnavailable)
}

// Name returns "cuda".
func (b *Backend) Name() string { return "cuda" }

// Kernels returns no kernel.
func (b *Backend) Kernels() []flashkit.Kernel { return nil }

// Close does nothing.
func (b *Backend) Close() error { return nil }
