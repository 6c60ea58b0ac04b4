//go:build amd64 && !purego

package simd

// avx2Decode has the routines of decode_avx2. A vector holds 8 elements of a row.
var avx2Decode = decodeRoutines{
	laneRoutines: &avx2Lanes, rows: 2, split: 16,
	pace:     pace{start: 60, flop: .01, pair: 3.2, element: .11, pack: .27, widen: .06},
	gradPace: pace{start: 860, flop: .0147, pair: .65, element: .42, pack: .23, widen: .35},

	attend:  [...]attendFunc{attendF32AVX2, attendF16AVX2, attendBF16AVX2},
	weights: decodeWeightsAVX2,

	int8: int8Routines{scoresInt8AVX2, valuesInt8AVX2, scoreRowInt8AVX2, valueRowInt8AVX2},

	splitRow: splitRowAVX2, joinRow: joinRowAVX2,
}
