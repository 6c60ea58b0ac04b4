//go:build amd64 && !purego

package simd

// decode_avx2 is decode with 8 elements of a row in the lanes.
var avx2Decode = decodeRoutines{
	laneRoutines: &avx2Lanes, rows: 2, split: 16,
	pace: pace{start: 200, flop: .01, pair: 2.5, element: .18, widen: .06},

	attend:  [...]attendFunc{attendF32AVX2, attendF16AVX2, attendBF16AVX2},
	weights: decodeWeightsAVX2,
}
