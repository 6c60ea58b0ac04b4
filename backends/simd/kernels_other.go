//go:build (!amd64 && !arm64) || purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns no kernels: there is no assembly for this platform, or a build tag
// turns it off.
func (b *Backend) vectorKernels() []flashkit.Kernel { return nil }

// otherHeads are those of decode kernels in assembly.
type otherHeads struct{}
