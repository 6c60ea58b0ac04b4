//go:build amd64 && !purego

package simd

// avx2Lanes has the routines of fwd_avx2 and bwd_avx2. The 16 lanes of two vectors hold query rows
// in a forward pass, and keys in a backward pass.
var avx2Lanes = laneRoutines{
	keys: 192, oneBlock: 256, checksFinite: true,
	fwdPace:   pace{start: 437, flop: .0096, pair: .6, element: .22, widen: .073, pack: .083, feature: 1.2},
	shortPace: pace{start: 307, flop: .0105, pair: .155, element: .128, widen: .131, pack: .052, feature: 1.2, few: true},
	bwdPace:   pace{start: 1740, tile: 470, flop: .0084, pair: 1.18, element: .104, key: .277, visit: .05},
	fewPace:   pace{start: 845, tile: 493, flop: .0109, pair: .24, element: .327, pack: .151},

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
