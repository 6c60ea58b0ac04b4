// Package wasm computes attention in a sandbox: one C file compiled to
// WebAssembly, embedded, and run without any import. Its kernels are still to
// come; New says so.
package wasm

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A Backend runs attention in a WebAssembly sandbox.
type Backend struct{}

// New returns the sandboxed backend, or an error that wraps
// flashkit.ErrUnavailable.
func New(context.Context) (*Backend, error) {
	return nil, fmt.Errorf("wasm: %w: this version has no WebAssembly kernel", flashkit.ErrUnavailable)
}

// Name returns "wasm".
func (b *Backend) Name() string { return "wasm" }

// Kernels returns no kernel.
func (b *Backend) Kernels() []flashkit.Kernel { return nil }

// Close does nothing.
func (b *Backend) Close() error { return nil }
