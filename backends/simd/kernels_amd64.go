//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns the kernels in assembly, even if this CPU lacks their instructions.
func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		b.kernel("fwd_avx512", avx512.missing, fitsAVX512, avx512Lanes.planForward, avx512Lanes.fwdTimes, forward(avx512Lanes.fwdItem)),
		b.kernel("decode_avx512", avx512.missing, fitsDecodeAVX512, planDecodeLanes, avx512Decode.times, decode(avx512Decode.chunks, avx512Decode.merge)),
		b.kernel("bwd_avx512", avx512.missing, fitsAVX512, avx512Lanes.planBackward, avx512Lanes.bwdTimes, avx512Lanes.backward(avx512Lanes.bwdPrepare, avx512Lanes.bwdBlock, avx512Lanes.bwdFinish)),
		b.kernel("bwd_decode_avx512", avx512.missing, fitsBwdDecodeAVX512, planBwdDecode, avx512Decode.bwdTimes, avx512Decode.backward()),
		b.kernel("bwd_fewkeys_avx512", avx512.missing, fitsFewKeysAVX512, avx512Lanes.planFewKeys, avx512Lanes.fewKeysTimes, avx512Lanes.backwardFewKeys()),
		b.kernel("fwd_amxf32", missingAMX, fitsAMXF32, fwdAMXF32Plan, fwdAMXF32Times, forward(fwdAMXF32Item)),
		b.kernel("bwd_amxf32", missingAMX, fitsAMXF32, bwdAMXF32Plan, bwdAMXF32Times, avx512Lanes.backward(bwdAMXF32Prepare, bwdAMXF32Block, avx512Lanes.bwdFinish)),
		b.kernel("fwd_amxbf16", missingAMX, fitsAMXBF16, fwdAMXBF16Plan, fwdAMXBF16Times, forward(fwdAMXBF16Item)),
		b.kernel("decode_amxbf16", missingAMX, fitsDecodeAMXBF16, decodeAMXBF16Plan, decodeAMXBF16Times, decode(decodeAMXBF16Chunks, amxDecode.merge)),
		b.kernel("fwd_avx512bf16", avx512bf16.missing, fitsAVX512BF16, fwdAVX512BF16Plan, fwdAVX512BF16Times, forward(fwdAVX512BF16Item)),
		b.kernel("bwd_amxbf16", missingAMX, fitsAMXBF16, bwdAMXBF16Plan, bwdAMXBF16Times, avx512Lanes.backward(bwdAMXBF16Prepare, bwdAMXBF16Block, bwdAVX512BF16Finish)),
		b.kernel("bwd_avx512bf16", avx512bf16.missing, fitsAVX512BF16, bwdAVX512BF16Plan, bwdAVX512BF16Times, avx512Lanes.backward(bwdAVX512BF16Prepare, bwdAVX512BF16Block, bwdAVX512BF16Finish)),
		b.kernel("fwd_avx2", avx2.missing, fitsAVX2, avx2Lanes.planForward, avx2Lanes.fwdTimes, forward(avx2Lanes.fwdItem)),
		b.kernel("decode_avx2", avx2.missing, fitsDecodeAVX2, planDecodeLanes, avx2Decode.times, decode(avx2Decode.chunks, avx2Decode.merge)),
		b.kernel("bwd_avx2", avx2.missing, fitsAVX2, avx2Lanes.planBackward, avx2Lanes.bwdTimes, avx2Lanes.backward(avx2Lanes.bwdPrepare, avx2Lanes.bwdBlock, avx2Lanes.bwdFinish)),
		b.kernel("bwd_decode_avx2", avx2.missing, fitsBwdDecodeAVX2, planBwdDecode, avx2Decode.bwdTimes, avx2Decode.backward()),
		b.kernel("bwd_fewkeys_avx2", avx2.missing, fitsFewKeysAVX2, avx2Lanes.planFewKeys, avx2Lanes.fewKeysTimes, avx2Lanes.backwardFewKeys()),
	}
}

// missingAMX returns the reason why this process cannot use AMX, or "". Its first call requests AMX
// from Linux.
func missingAMX() string { return amxbf16().missing() }

func fitsAVX512(p flashkit.Problem) string { return avx512.refuses(p) }

func fitsAVX2(p flashkit.Problem) string { return avx2.refuses(p) }

func fitsDecodeAVX512(p flashkit.Problem) string { return fitsDecode(avx512, p) }

func fitsDecodeAVX2(p flashkit.Problem) string { return fitsDecode(avx2, p) }

func fitsBwdDecodeAVX512(p flashkit.Problem) string { return fitsBwdDecode(avx512, p) }

func fitsBwdDecodeAVX2(p flashkit.Problem) string { return fitsBwdDecode(avx2, p) }

func fitsFewKeysAVX2(p flashkit.Problem) string { return fitsFewKeys(avx2, p) }

func fitsFewKeysAVX512(p flashkit.Problem) string { return fitsFewKeys(avx512, p) }
