//go:build amd64 && !purego

package simd

// decode_avx512 is decode with 16 elements of a row in the lanes.
var avx512Decode = decodeRoutines{
	laneRoutines: &avx512Lanes, rows: 4, split: 32, tails: true,
	pace: pace{start: 200, flop: .005, pair: 2.4, element: .16, widen: .055},

	attend:  [...]attendFunc{attendF32AVX512, attendF16AVX512, attendBF16AVX512},
	weights: decodeWeightsAVX512,
}
