//go:build amd64 && !purego

package simd

// avx2Decode has the routines of decode_avx2. A vector holds 8 elements of a row.
var avx2Decode = decodeRoutines{
	laneRoutines: &avx2Lanes, rows: 2, split: 16,
	pace:     pace{start: 25, flop: .0119, pair: 1.2, element: .072, pack: .2, widen: .061},
	gradPace: pace{start: 650, flop: .0093, pair: .87, element: .36, pack: .3, widen: .17},

	attend:  [...]attendFunc{attendF32AVX2, attendF16AVX2, attendBF16AVX2},
	weights: decodeWeightsAVX2,

	int8: int8Routines{scoresInt8AVX2, valuesInt8AVX2, scoreRowInt8AVX2, valueRowInt8AVX2},

	splitRow: splitRowAVX2, joinRow: joinRowAVX2,
}
