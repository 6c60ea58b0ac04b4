//go:build amd64 && !purego

package simd

// avx2Decode has the routines of decode_avx2. A vector holds 8 elements of a row.
var avx2Decode = decodeRoutines{
	laneRoutines: &avx2Lanes, rows: 2, split: 16,
	pace:     pace{start: 20, flop: .01, pair: 3, element: .18, pack: .6, widen: .06},
	gradPace: pace{start: 700, flop: .02, pair: 3, element: .5, pack: .5, widen: .2},

	attend:  [...]attendFunc{attendF32AVX2, attendF16AVX2, attendBF16AVX2},
	weights: decodeWeightsAVX2,

	splitRow: splitRowAVX2, joinRow: joinRowAVX2,
}
