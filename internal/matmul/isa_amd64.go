//go:build amd64 && !purego

package matmul

import (
	"golang.org/x/sys/cpu"

	"github.com/flashkit-go/flashkit/internal/amx"
)

// available returns the instruction sets of this machine, the best first.
func available() (list []*isa) {
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL {
		if cpu.X86.HasAVX512BF16 && amx.Has() {
			u := avx512
			u.name, u.rounded, u.int8 = "amx", tiles, tilesInt8
			list = append(list, &u)
		}
		if cpu.X86.HasAVX512BF16 {
			u := avx512
			u.name, u.rounded = "avx512bf16", func() *isa { return &avx512bf16 }
			list = append(list, &u)
		}
		list = append(list, &avx512)
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		if cpu.X86.HasAVXVNNI {
			u := avx2
			u.name, u.int8 = "avxvnni", func() *isa { return &avxvnni }
			list = append(list, &u)
		}
		list = append(list, &avx2)
	}
	return append(list, &portable)
}

// tiles returns the routines of AMX if the process may use AMX, else the routines of AVX512-BF16.
// It requests the permission for AMX, so only bf16 products call tiles. Products in 8 bits call tilesInt8.
func tiles() *isa {
	if amx.Allowed() {
		return &amxbf16
	}
	return &avx512bf16
}

// tilesInt8 is tiles for products in 8 bits.
func tilesInt8() *isa {
	if cpu.X86.HasAMXInt8 && amx.Allowed() {
		return &amxint8
	}
	return int8AVX512()
}

var (
	finishAVX512 = [activations]finishFunc{finishNoneAVX512, finishReLUAVX512, finishGELUAVX512, tanhNumbers.finish(finishLogisticAVX512), siluNumbers.finish(finishLogisticAVX512)}
	finishAVX2   = [activations]finishFunc{finishNoneAVX2, finishReLUAVX2, finishGELUAVX2, tanhNumbers.finish(finishLogisticAVX2), siluNumbers.finish(finishLogisticAVX2)}
)

var amxbf16 = isa{
	name: "amx", lanes: 16, tile: 16, flops: 800, rows: 512, block: 1 << 18, wide: 2, depth: 32, fetch: []int{1}, tiles: true,
	pairs:     [3]pairsFunc{multiply1AMXBF16, multiply2AMXBF16},
	roundRows: roundRowsAVX512BF16,
	finish:    finishAVX512,
	transpose: transposeAVX512,
}

var avx512 = isa{
	name: "avx512", lanes: 16, tile: 8, flops: 90, rows: 128, block: 1 << 18, wide: 3, depth: 2, fetch: []int{1, 2, 4, 8, 16}, adds: true,
	multiply:  [3]multiplyFunc{multiply1AVX512, multiply2AVX512, multiply3AVX512},
	vector:    multiplyVectorAVX512,
	widen:     [3]widenFunc{widen1AVX512, widen2AVX512, widen3AVX512},
	finish:    finishAVX512,
	slope:     [activations]slopeFunc{nil, slopeReLUAVX512, slopeGELUAVX512, tanhNumbers.slope(slopeLogisticAVX512), siluNumbers.slope(slopeLogisticAVX512)},
	transpose: transposeAVX512,
	int8:      int8AVX512,
}

var avx512bf16 = isa{
	name: "avx512bf16", lanes: 16, tile: 8, flops: 180, rows: 128, block: 1 << 18, wide: 3, depth: 2, fetch: []int{1, 2, 4, 8, 16}, adds: true,
	pairs:     [3]pairsFunc{multiply1AVX512BF16, multiply2AVX512BF16, multiply3AVX512BF16},
	roundRows: roundRowsAVX512BF16,
	finish:    finishAVX512,
	transpose: transposeAVX512,
}

var avx2 = isa{
	name: "avx2", lanes: 8, tile: 4, flops: 60, rows: 64, block: 1 << 17, wide: 3, depth: 2, fetch: []int{1, 2, 4, 8, 16}, adds: true,
	multiply:  [3]multiplyFunc{multiply1AVX2, multiply2AVX2, multiply3AVX2},
	vector:    multiplyVectorAVX2,
	widen:     [3]widenFunc{widen1AVX2, widen2AVX2, widen3AVX2},
	finish:    finishAVX2,
	slope:     [activations]slopeFunc{nil, slopeReLUAVX2, slopeGELUAVX2, tanhNumbers.slope(slopeLogisticAVX2), siluNumbers.slope(slopeLogisticAVX2)},
	transpose: transposeAVX2,
	int8:      func() *isa { return &avx2int8 },
}

var avx2int8 = isa{
	name: "avx2", lanes: 16, tile: 6, flops: 120, rows: 128, wide: 1, depth: 4, adds: true, groupInt8: 2,
	finish: finishAVX2, extent: extentAVX2, scale: scaleAVX2, quantize: quantizeAVX2, dots: dotsAVX2,
}

var avxvnni = isa{
	name: "avxvnni", lanes: 16, tile: 6, flops: 240, rows: 128, wide: 1, depth: 4, adds: true, groupInt8: 4, offsetInt8: true,
	finish: finishAVX2, extent: extentAVX2, scale: scaleAVX2, quantize: quantizeAVXVNNI, dots: dotsAVXVNNI,
}

// int8AVX512 returns the routines of AVX512-VNNI, or AVX2's if the processor lacks VNNI.
func int8AVX512() *isa {
	if cpu.X86.HasAVX512VNNI {
		return &avx512vnni
	}
	return &avx2int8
}

var avx512vnni = isa{
	name: "avx512vnni", lanes: 48, tile: 8, flops: 360, rows: 128, wide: 1, depth: 4, adds: true, groupInt8: 4, offsetInt8: true,
	finish: finishAVX512, extent: extentAVX2, scale: scaleAVX2, quantize: quantizeAVX512VNNI, dots: dotsAVX512VNNI,
}

var amxint8 = isa{
	name: "amx", lanes: 32, tile: 32, flops: 1600, rows: 128, wide: 1, depth: 64, adds: true, tilesInt8: true, groupInt8: 4, offsetInt8: true,
	finish: finishAVX512, extent: extentAVX2, scale: scaleAVX2, quantize: quantizeAVX512VNNI, dots: dotsAMXINT8,
}
