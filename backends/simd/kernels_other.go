//go:build !amd64 || noasm || purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns nothing: there is no assembly for this platform, or it
// is turned off.
func (b *Backend) vectorKernels() []flashkit.Kernel { return nil }
