//go:build !purego

package simd

import (
	"github.com/flashkit-go/flashkit"
)

// vectorKernels returns the kernels in assembly, also those that this CPU lacks
// the instructions for.
func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		vector("fwd_avx512", avx512.missing, fitsAVX512, avx512Lanes.fwdCost, avx512Lanes.fwdMemory, b.fwdAVX512, fwdTake|flashkit.FeatureMixed),
		vector("decode_avx512", avx512.missing, fitsDecodeAVX512, avx512Decode.cost, decodeLanesMemory, b.decodeAVX512, fwdTake|flashkit.FeatureMixed),
		vector("bwd_avx512", avx512.missing, fitsAVX512, avx512Lanes.bwdCost, avx512Lanes.bwdMemory, b.bwdAVX512, bwdTake),
		vector("fwd_amxf32", missingAMX, fitsAMXF32, fwdAMXF32Cost, fwdAMXF32Memory, b.fwdAMXF32, fwdTake|flashkit.FeatureMixed),
		vector("bwd_amxf32", missingAMX, fitsAMXF32, bwdAMXF32Cost, bwdAMXF32Memory, b.bwdAMXF32, bwdTake),
		vector("fwd_amxbf16", missingAMX, fitsAMXBF16, fwdAMXBF16Cost, fwdAMXBF16Memory, b.fwdAMXBF16, fwdTake),
		vector("decode_amxbf16", missingAMX, fitsDecodeAMXBF16, decodeAMXBF16Cost, decodeAMXBF16Memory, b.decodeAMXBF16, fwdTake),
		vector("fwd_avx512bf16", avx512bf16.missing, fitsAVX512BF16, fwdAVX512BF16Cost, fwdAVX512BF16Memory, b.fwdAVX512BF16, fwdTake),
		vector("bwd_amxbf16", missingAMX, fitsAMXBF16, bwdAMXBF16Cost, bwdAMXBF16Memory, b.bwdAMXBF16, bwdTake),
		vector("bwd_avx512bf16", avx512bf16.missing, fitsAVX512BF16, bwdAVX512BF16Cost, bwdAVX512BF16Memory, b.bwdAVX512BF16, bwdTake),
		vector("fwd_avx2", avx2.missing, fitsAVX2, avx2Lanes.fwdCost, avx2Lanes.fwdMemory, b.fwdAVX2, fwdTake|flashkit.FeatureMixed),
		vector("decode_avx2", avx2.missing, fitsDecodeAVX2, avx2Decode.cost, decodeLanesMemory, b.decodeAVX2, fwdTake|flashkit.FeatureMixed),
		vector("bwd_avx2", avx2.missing, fitsAVX2, avx2Lanes.bwdCost, avx2Lanes.bwdMemory, b.bwdAVX2, bwdTake),
	}
}

// missingAMX asks Linux for AMX on the first call.
func missingAMX() string { return amxbf16().missing() }

func fitsAVX512(p flashkit.Problem) string { return avx512.refuses(p) }

func fitsAVX2(p flashkit.Problem) string { return avx2.refuses(p) }

func fitsDecodeAVX512(p flashkit.Problem) string { return fitsDecode(avx512, p) }

func fitsDecodeAVX2(p flashkit.Problem) string { return fitsDecode(avx2, p) }
