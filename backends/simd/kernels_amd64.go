//go:build !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns the kernels in assembly, also those that this CPU lacks
// the instructions for.
func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		{Name: "simd/fwd_avx512", Fits: fitsAVX512, Cost: fwdAVX512Cost, RunForward: b.fwdAVX512},
		{Name: "simd/bwd_avx512", Fits: fitsAVX512, Cost: bwdAVX512Cost, RunBackward: b.bwdAVX512},
	}
}

func fitsAVX512(flashkit.Problem) string { return avx512.missing() }
