//go:build amd64 && !purego

package simd

// avx2Decode has the routines of decode_avx2. A vector holds 8 elements of a row.
var avx2Decode = decodeRoutines{
	laneRoutines: &avx2Lanes, rows: 2, split: 16,
	pace:     pace{start: 13, flop: .0118, pair: 1.54, element: .071, pack: .33, widen: .051},
	gradPace: pace{start: 778, flop: .008, pair: 1.45, element: .284, pack: .274, widen: .104},

	attend:  [...]attendFunc{attendF32AVX2, attendF16AVX2, attendBF16AVX2},
	weights: decodeWeightsAVX2,

	int8: int8Routines{scoresInt8AVX2, valuesInt8AVX2, scoreRowInt8AVX2, valueRowInt8AVX2},

	splitRow: splitRowAVX2, joinRow: joinRowAVX2,
}
