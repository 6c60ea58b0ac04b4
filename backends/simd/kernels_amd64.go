//go:build !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
)

// vectorKernels returns the kernels in assembly, also those that this CPU lacks
// the instructions for.
func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		b.vector("fwd_avx512", avx512.missing, fitsAVX512, fwdTake|flashkit.FeatureMixed, avx512Lanes.planForward, avx512Lanes.fwdTimes, forward(avx512Lanes.fwdItem)),
		b.vector("decode_avx512", avx512.missing, fitsDecodeAVX512, fwdTake|flashkit.FeatureMixed, planDecodeLanes, avx512Decode.times, decode(avx512Decode.chunks, avx512Decode.merge)),
		b.vector("bwd_avx512", avx512.missing, fitsAVX512, bwdTake, avx512Lanes.planBackward, avx512Lanes.bwdTimes, avx512Lanes.backward(avx512Lanes.bwdPrepare, avx512Lanes.bwdBlock, avx512Lanes.bwdFinish)),
		b.vector("fwd_amxf32", missingAMX, fitsAMXF32, fwdTake|flashkit.FeatureMixed, fwdAMXF32Plan, fwdAMXF32Times, forward(fwdAMXF32Item)),
		b.vector("bwd_amxf32", missingAMX, fitsAMXF32, bwdTake, bwdAMXF32Plan, bwdAMXF32Times, avx512Lanes.backward(bwdAMXF32Prepare, bwdAMXF32Block, avx512Lanes.bwdFinish)),
		b.vector("fwd_amxbf16", missingAMX, fitsAMXBF16, fwdTake, fwdAMXBF16Plan, fwdAMXBF16Times, forward(fwdAMXBF16Item)),
		b.vector("decode_amxbf16", missingAMX, fitsDecodeAMXBF16, fwdTake, decodeAMXBF16Plan, decodeAMXBF16Times, decode(decodeAMXBF16Chunks, amxDecode.merge)),
		b.vector("fwd_avx512bf16", avx512bf16.missing, fitsAVX512BF16, fwdTake, fwdAVX512BF16Plan, fwdAVX512BF16Times, forward(fwdAVX512BF16Item)),
		b.vector("bwd_amxbf16", missingAMX, fitsAMXBF16, bwdTake, bwdAMXBF16Plan, bwdAMXBF16Times, avx512Lanes.backward(bwdAMXBF16Prepare, bwdAMXBF16Block, bwdAVX512BF16Finish)),
		b.vector("bwd_avx512bf16", avx512bf16.missing, fitsAVX512BF16, bwdTake, bwdAVX512BF16Plan, bwdAVX512BF16Times, avx512Lanes.backward(bwdAVX512BF16Prepare, bwdAVX512BF16Block, bwdAVX512BF16Finish)),
		b.vector("fwd_avx2", avx2.missing, fitsAVX2, fwdTake|flashkit.FeatureMixed, avx2Lanes.planForward, avx2Lanes.fwdTimes, forward(avx2Lanes.fwdItem)),
		b.vector("decode_avx2", avx2.missing, fitsDecodeAVX2, fwdTake|flashkit.FeatureMixed, planDecodeLanes, avx2Decode.times, decode(avx2Decode.chunks, avx2Decode.merge)),
		b.vector("bwd_avx2", avx2.missing, fitsAVX2, bwdTake, avx2Lanes.planBackward, avx2Lanes.bwdTimes, avx2Lanes.backward(avx2Lanes.bwdPrepare, avx2Lanes.bwdBlock, avx2Lanes.bwdFinish)),
	}
}

// missingAMX asks Linux for AMX on the first call.
func missingAMX() string { return amxbf16().missing() }

func fitsAVX512(p flashkit.Problem) string { return avx512.refuses(p) }

func fitsAVX2(p flashkit.Problem) string { return avx2.refuses(p) }

func fitsDecodeAVX512(p flashkit.Problem) string { return fitsDecode(avx512, p) }

func fitsDecodeAVX2(p flashkit.Problem) string { return fitsDecode(avx2, p) }
