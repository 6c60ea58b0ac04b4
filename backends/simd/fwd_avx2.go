//go:build amd64 && !purego

package simd

// avx2Lanes has the routines of fwd_avx2 and bwd_avx2. The 16 lanes of two vectors hold query rows
// in a forward pass, and keys in a backward pass.
var avx2Lanes = laneRoutines{
	keys: 192, oneBlock: 256, checksFinite: true,
	fwdPace:   pace{start: 1100, flop: .0093, pair: .16, element: .05, widen: .29, pack: .42, feature: 1.2},
	shortPace: pace{start: 380, flop: .012, pair: .2, element: .075, widen: .08, pack: .065, feature: 1.2, few: true},
	bwdPace:   pace{start: 830, tile: 930, flop: .0125, pair: .65, element: .084, key: .3, widen: .018, pack: .022},
	fewPace:   pace{start: 180, tile: 580, flop: .0131, pair: .13, element: .69, widen: .0035, pack: .53},

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
