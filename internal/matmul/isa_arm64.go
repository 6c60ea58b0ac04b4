//go:build !purego

package matmul

// available returns the instruction sets of every arm64 processor that Go supports.
func available() []*isa { return []*isa{&neon, &portable} }

// neon treats two vector registers as one vector of eight columns. It widens bf16 to float32, which
// is exact.
var neon = isa{
	name: "neon", lanes: 8, tile: 6, flops: 50, rows: 128, block: 1 << 16, wide: 2, depth: 2, fetch: []int{1, 4},
	multiply:  [3]multiplyFunc{multiply1NEON, multiply2NEON},
	widen:     [3]widenFunc{widen1NEON, widen2NEON},
	finish:    [activations]finishFunc{finishNoneNEON, finishReLUNEON, finishGELUNEON, tanhNumbers.finish(finishLogisticNEON), siluNumbers.finish(finishLogisticNEON)},
	slope:     [activations]slopeFunc{nil, slopeReLUNEON, slopeGELUNEON, tanhNumbers.slope(slopeLogisticNEON), siluNumbers.slope(slopeLogisticNEON)},
	transpose: transposeNEON,
}
