//go:build amd64 && !purego

package simd

// avx512Lanes has the routines of fwd_avx512 and bwd_avx512. The 32 lanes of two vectors hold query
// rows in a forward pass, and keys in a backward pass.
var avx512Lanes = laneRoutines{
	keys:      256,
	fwdPace:   pace{start: 1000, flop: .0058, pair: .14, element: .24, widen: .22, pack: .21, feature: .8},
	shortPace: pace{start: 285, flop: .0064, pair: .16, element: .1, widen: .08, pack: .05, feature: .8, few: true},
	bwdPace:   pace{start: 1200, tile: 820, flop: .0066, pair: .03, element: .166, key: .0725, widen: .067, pack: .002},
	fewPace:   pace{start: 87, tile: 1260, flop: .0053, pair: .01, element: .385, widen: .032, pack: .18},

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
