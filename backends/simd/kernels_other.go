//go:build (!amd64 && !arm64) || purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns no kernels: the platform has no assembly, or a build tag excludes it.
func (b *Backend) vectorKernels() []flashkit.Kernel { return nil }

// otherHeads stands in for the type that the decode kernels in assembly use.
type otherHeads struct{}
