//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns the kernels in assembly.
func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		b.vector("fwd_neon", neon.missing, neon.refuses, fwdTake|flashkit.FeatureMixed, neonLanes.planForward, neonLanes.fwdTimes, forward(neonLanes.fwdItem)),
		b.vector("fwd_neonbf16", neonBF16.missing, fitsNEONBF16, fwdTake, fwdNEONBF16Plan, fwdNEONBF16Times, forward(fwdNEONBF16Item)),
		b.vector("decode_neon", neon.missing, fitsDecodeNEON, fwdTake|flashkit.FeatureMixed, planDecodeLanes, neonDecode.times, decode(neonDecode.chunks, neonDecode.merge)),
		b.vector("decode_neonfhm", neonFHM.missing, fitsDecodeNEONFHM, fwdTake, planDecodeLanes, neonFHMDecode.times, decode(neonFHMDecode.chunks, neonFHMDecode.merge)),
		b.vector("decode_neonbf16", neonBF16.missing, fitsDecodeNEONBF16, fwdTake, planDecodeLanes, neonBF16Decode.times, decode(neonBF16Decode.chunks, neonBF16Decode.merge)),
		b.vector("bwd_neon", neon.missing, neon.refuses, bwdTake, neonLanes.planBackward, neonLanes.bwdTimes, neonLanes.backward(neonLanes.bwdPrepare, neonLanes.bwdBlock, neonLanes.bwdFinish)),
	}
}

func fitsDecodeNEON(p flashkit.Problem) string { return fitsDecode(neon, p) }
