//go:build !purego

package matmul

import "golang.org/x/sys/cpu"

// available returns the instruction sets of this machine, the best first. The instruction sets of
// arm64 differ in products in 8 bits alone.
func available() (list []*isa) {
	if cpu.ARM64.HasI8MM {
		list = append(list, neon.with("neoni8mm", &neonI8MM))
	}
	if cpu.ARM64.HasASIMDDP {
		list = append(list, neon.with("neondot", &neonDot))
	}
	return append(list, &neon, &portable)
}

// with returns an instruction set with other routines for Int8.
func (u isa) with(name string, int8 *isa) *isa {
	u.name, u.int8 = name, func() *isa { return int8 }
	return &u
}

// neon treats two vector registers as one vector of eight columns. It widens bf16 to float32, which
// is exact.
var neon = isa{
	name: "neon", lanes: 8, tile: 6, flops: 50, rows: 128, block: 1 << 16, wide: 2, depth: 2, fetch: []int{1, 4},
	multiply:  [3]multiplyFunc{multiply1NEON, multiply2NEON},
	widen:     [3]widenFunc{widen1NEON, widen2NEON},
	finish:    finishNEON,
	slope:     [activations]slopeFunc{nil, slopeReLUNEON, slopeGELUNEON, tanhNumbers.slope(slopeLogisticNEON), siluNumbers.slope(slopeLogisticNEON)},
	transpose: transposeNEON,
	int8:      func() *isa { return &neonInt8 },
}

var finishNEON = [activations]finishFunc{finishNoneNEON, finishReLUNEON, finishGELUNEON, tanhNumbers.finish(finishLogisticNEON), siluNumbers.finish(finishLogisticNEON)}

var neonInt8 = isa{
	name: "neon", lanes: 8, tile: 6, flops: 60, rows: 128, wide: 1, depth: 16, adds: true, groupInt8: 4,
	finish: finishNEON, extent: extentNEON, scale: scaleNEON, quantize: quantizeNEON, dots: dotsNEON,
}

var neonDot = isa{
	name: "neondot", lanes: 16, tile: 6, flops: 180, rows: 128, wide: 1, depth: 16, adds: true, groupInt8: 4,
	finish: finishNEON, extent: extentNEON, scale: scaleNEON, quantize: quantizeNEON, dots: dotsNEONDOT,
}

var neonI8MM = isa{
	name: "neoni8mm", lanes: 16, tile: 6, flops: 300, rows: 128, wide: 1, depth: 16, adds: true, groupInt8: 8,
	finish: finishNEON, extent: extentNEON, scale: scaleNEON, quantize: quantizeNEON, dots: dotsNEONI8MM,
}
