//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns the kernels in assembly.
func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		vector("fwd_neon", neon.missing, neon.refuses, neonLanes.fwdCost, neonLanes.fwdMemory, b.fwdNEON, fwdTake|flashkit.FeatureMixed),
		vector("fwd_neonbf16", neonBF16.missing, fitsNEONBF16, fwdNEONBF16Cost, fwdNEONBF16Memory, b.fwdNEONBF16, fwdTake),
		vector("decode_neon", neon.missing, fitsDecodeNEON, neonDecode.cost, decodeLanesMemory, b.decodeNEON, fwdTake|flashkit.FeatureMixed),
		vector("decode_neonfhm", neonFHM.missing, fitsDecodeNEONFHM, neonFHMDecode.cost, decodeLanesMemory, b.decodeNEONFHM, fwdTake),
		vector("decode_neonbf16", neonBF16.missing, fitsDecodeNEONBF16, neonBF16Decode.cost, decodeLanesMemory, b.decodeNEONBF16, fwdTake),
		vector("bwd_neon", neon.missing, neon.refuses, neonLanes.bwdCost, neonLanes.bwdMemory, b.bwdNEON, bwdTake),
	}
}

func fitsDecodeNEON(p flashkit.Problem) string { return fitsDecode(neon, p) }
