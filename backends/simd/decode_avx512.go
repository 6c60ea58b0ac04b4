//go:build amd64 && !purego

package simd

// avx512Decode has the routines of decode_avx512. A vector holds 16 elements of a row.
var avx512Decode = decodeRoutines{
	laneRoutines: &avx512Lanes, rows: 4, split: 32, tails: true,
	pace:     pace{start: 2.6, flop: .005, pair: 1.63, element: .063, pack: .227, widen: .053, narrow: slowing{1.33, 1.53}},
	gradPace: pace{start: 502, flop: .0052, pair: 1.07, element: .065, pack: .167, widen: .112, narrow: slowing{1, 1.53}},

	attend:  [...]attendFunc{attendF32AVX512, attendF16AVX512, attendBF16AVX512},
	weights: decodeWeightsAVX512,

	int8: int8Routines{scoresInt8AVX512, valuesInt8AVX512, scoreRowInt8AVX512, valueRowInt8AVX512},

	splitRow: splitRowAVX512, joinRow: joinRowAVX512,
}
