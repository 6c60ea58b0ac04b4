//go:build !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

// vectorKernels returns the kernels in assembly, also those that this CPU lacks
// the instructions for.
func (b *Backend) vectorKernels() []flashkit.Kernel {
	return []flashkit.Kernel{
		{Name: "simd/fwd_avx512", Missing: avx512.missing, Fits: fitsAVX512, Cost: avx512Lanes.fwdCost, HostMemory: avx512Lanes.fwdMemory, RunForward: b.fwdAVX512},
		{Name: "simd/decode_avx512", Missing: avx512.missing, Fits: fitsDecodeAVX512, Cost: avx512Decode.cost, HostMemory: decodeMemory, RunForward: b.decodeAVX512},
		{Name: "simd/bwd_avx512", Missing: avx512.missing, Fits: fitsAVX512, Cost: avx512Lanes.bwdCost, HostMemory: avx512Lanes.bwdMemory, RunBackward: b.bwdAVX512},
		{Name: "simd/fwd_amxf32", Missing: missingAMX, Fits: fitsAMXF32, Cost: fwdAMXF32Cost, HostMemory: fwdAMXF32Memory, RunForward: b.fwdAMXF32},
		{Name: "simd/bwd_amxf32", Missing: missingAMX, Fits: fitsAMXF32, Cost: bwdAMXF32Cost, HostMemory: bwdAMXF32Memory, RunBackward: b.bwdAMXF32},
		{Name: "simd/fwd_amxbf16", Missing: missingAMX, Fits: fitsAMXBF16, Cost: fwdAMXBF16Cost, HostMemory: fwdAMXBF16Memory, RunForward: b.fwdAMXBF16},
		{Name: "simd/decode_amxbf16", Missing: missingAMX, Fits: fitsDecodeAMXBF16, Cost: decodeAMXBF16Cost, HostMemory: decodeAMXBF16Memory, RunForward: b.decodeAMXBF16},
		{Name: "simd/fwd_avx512bf16", Missing: avx512bf16.missing, Fits: fitsAVX512BF16, Cost: fwdAVX512BF16Cost, HostMemory: fwdAVX512BF16Memory, RunForward: b.fwdAVX512BF16},
		{Name: "simd/bwd_amxbf16", Missing: missingAMX, Fits: fitsAMXBF16, Cost: bwdAMXBF16Cost, HostMemory: bwdAMXBF16Memory, RunBackward: b.bwdAMXBF16},
		{Name: "simd/bwd_avx512bf16", Missing: avx512bf16.missing, Fits: fitsAVX512BF16, Cost: bwdAVX512BF16Cost, HostMemory: bwdAVX512BF16Memory, RunBackward: b.bwdAVX512BF16},
		{Name: "simd/fwd_avx2", Missing: avx2.missing, Fits: fitsAVX2, Cost: avx2Lanes.fwdCost, HostMemory: avx2Lanes.fwdMemory, RunForward: b.fwdAVX2},
		{Name: "simd/decode_avx2", Missing: avx2.missing, Fits: fitsDecodeAVX2, Cost: avx2Decode.cost, HostMemory: decodeMemory, RunForward: b.decodeAVX2},
		{Name: "simd/bwd_avx2", Missing: avx2.missing, Fits: fitsAVX2, Cost: avx2Lanes.bwdCost, HostMemory: avx2Lanes.bwdMemory, RunBackward: b.bwdAVX2},
	}
}

// missingAMX asks Linux for AMX on the first call.
func missingAMX() string { return amxbf16().missing() }

func fitsAVX512(p flashkit.Problem) string { return avx512.refuses(p) }

func fitsAVX2(p flashkit.Problem) string { return avx2.refuses(p) }

func fitsDecodeAVX512(p flashkit.Problem) string { return fitsDecode(avx512, p) }

func fitsDecodeAVX2(p flashkit.Problem) string { return fitsDecode(avx2, p) }
