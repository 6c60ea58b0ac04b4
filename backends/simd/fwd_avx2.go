//go:build amd64 && !purego

package simd

// avx2Lanes has the routines of fwd_avx2 and bwd_avx2. The 16 lanes of two vectors hold query rows
// in a forward pass, and keys in a backward pass.
var avx2Lanes = laneRoutines{
	keys: 192, oneBlock: 256, checksFinite: true,
	fwdPace:   pace{start: 380, flop: .0092, pair: .35, element: .32, widen: .023, pack: .18, feature: 1.2},
	shortPace: pace{start: 380, flop: .0096, pair: .16, element: .088, widen: .144, pack: .076, feature: 1.2, few: true},
	bwdPace:   pace{start: 305, tile: 730, flop: .0088, pair: .5, element: .29, key: .37},
	fewPace:   pace{start: 740, tile: 400, flop: .0116, pair: .14, element: .5, pack: .15},

	convertRoutines: convertRoutines{
		lanes: 16, block: 8, convert: 8, transpose: transposeAVX2,
		widenF16: widenF16AVX2, widenBF16: widenBF16AVX2, narrowF16: narrowF16AVX2, narrowBF16: narrowBF16AVX2, dequantize: dequantizeAVX2,
	},
	forwardRoutines: forwardRoutines{
		scores: scoresAVX2, maskScores: maskScoresAVX2, expScores: expScoresAVX2, finalizeLSE: finalizeLSEAVX2,
		addValues: addValuesAVX2, attendTile: attendTileAVX2, queryLanes: queryLanesAVX2, packRows: packRowsAVX2,
	},
	backwardRoutines: backwardRoutines{
		dots: dotsAVX2, gradients: gradientsAVX2, gradientsT: gradientsTAVX2, gradientsOf: gradientsOfAVX2, addProduct: addProductAVX2, addProductT: addProductTAVX2,
		addProductMasked: addProductMaskedAVX2, addProductTMasked: addProductTMaskedAVX2, scoresNarrow: scoresNarrowAVX2,
		setPanel: copyRowsAVX2, accumulateRows: addRowsAVX2, dropoutMask: dropoutMaskAVX2,
	},

	addSum: addSumAVX2, addScaled: addScaledAVX2, scaleRows: scaleRowsAVX2, scoreMod: scoreModAVX2, maskBits: maskBitsAVX2, fetch: fetchAVX2, dropWeights: dropWeightsAVX2,
}
