//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		b.kernel("fwd_neon", neon.missing, neon.refuses, neonLanes.planForward, neonLanes.fwdTimes, forward(neonLanes.fwdItem)),
		b.kernel("fwd_neonbf16", neonBF16.missing, fitsNEONBF16, fwdNEONBF16Plan, fwdNEONBF16Times, forward(fwdNEONBF16Item)),
		b.kernel("decode_neon", neon.missing, fitsDecodeNEON, planDecodeLanes, neonDecode.times, decode(neonDecode.chunks, neonDecode.merge)),
		b.kernel("decode_neonfhm", neonFHM.missing, fitsDecodeNEONFHM, planDecodeLanes, neonFHMDecode.times, decode(neonFHMDecode.chunks, neonFHMDecode.merge)),
		b.kernel("decode_neonbf16", neonBF16.missing, fitsDecodeNEONBF16, planDecodeLanes, neonBF16Decode.times, decode(neonBF16Decode.chunks, neonBF16Decode.merge)),
		b.kernel("bwd_neon", neon.missing, neon.refuses, neonLanes.planBackward, neonLanes.bwdTimes, neonLanes.backward(neonLanes.bwdPrepare, neonLanes.bwdBlock, neonLanes.bwdFinish)),
		b.kernel("bwd_decode_neon", neon.missing, fitsBwdDecodeNEON, planBwdDecode, neonDecode.bwdTimes, neonDecode.backward()),
	}
}

func fitsDecodeNEON(p flashkit.Problem) string { return fitsDecode(neon, p) }

func fitsBwdDecodeNEON(p flashkit.Problem) string { return fitsBwdDecode(neon, p) }
