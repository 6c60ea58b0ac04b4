//go:build amd64 && !purego

package simd

// avx512Lanes has the routines of fwd_avx512 and bwd_avx512. The 32 lanes of two vectors hold query
// rows in a forward pass, and keys in a backward pass.
var avx512Lanes = laneRoutines{
	keys: 256, adapt: widePace,
	fwdPace:   pace{start: 673, flop: .0058, pair: .144, element: .16, widen: .01, pack: .026, feature: .8, narrow: slowing{1.62, .94}},
	shortPace: pace{start: 185, flop: .0064, pair: .172, element: .093, widen: .054, pack: .008, feature: .8, few: true, narrow: slowing{1.63, 1.48}},
	bwdPace:   pace{start: 1686, tile: 583, flop: .0047, pair: .02, element: .084, key: .214, visit: .05, widen: .0226, pack: .002, narrow: slowing{1.5, .83}},
	fewPace:   pace{start: 678, tile: 562, flop: .0053, pair: .01, element: .276, widen: .0186, pack: .165, narrow: slowing{1.35, .79}},

	convertRoutines: convertRoutines{
		lanes: 32, block: 16, convert: 1, transpose: transposeAVX512,
		widenF16: widenF16AVX512, widenBF16: widenBF16AVX512, narrowF16: narrowF16AVX512, narrowBF16: narrowBF16AVX512, dequantize: dequantizeAVX2,
	},
	forwardRoutines: forwardRoutines{
		scores: scoresAVX512, maskScores: maskScoresAVX512, expScores: expScoresAVX512, finalizeLSE: finalizeLSEAVX512,
		addValues: addValuesAVX512, attendTile: attendTileAVX512, queryLanes: queryLanesAVX512, packRows: packRowsAVX512,
	},
	backwardRoutines: backwardRoutines{
		dots: dotsAVX512, gradients: gradientsAVX512, gradientsT: gradientsTAVX512, gradientsOf: gradientsOfAVX512, addProduct: addProductAVX512, addProductT: addProductTAVX512,
		addProductMasked: addProductMaskedAVX512, addProductTMasked: addProductTMaskedAVX512, scoresNarrow: scoresNarrowAVX512,
		setPanel: copyRowsAVX512, accumulateRows: addRowsAVX512, dropoutMask: dropoutMaskAVX512,
	},

	addSum: addSumAVX512, addScaled: addScaledAVX512, scaleRows: scaleRowsAVX512, scoreMod: scoreModAVX512, maskBits: maskBitsAVX512, fetch: fetchAVX512, dropWeights: dropWeightsAVX512,
}
