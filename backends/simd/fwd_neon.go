//go:build arm64 && !purego

package simd

// neonLanes has the routines of fwd_neon and bwd_neon. The 16 lanes of four vectors hold query rows
// in a forward pass, and keys in a backward pass.
var neonLanes = laneRoutines{
	keys: 192, checksFinite: true,
	fwdPace: neonPace(fwdCycles), bwdPace: neonPace(bwdCycles),

	convertRoutines: convertRoutines{
		lanes: 16, block: 4, convert: 8, transpose: transposeNEON,
		widenF16: widenF16NEON, widenBF16: widenBF16NEON, narrowF16: narrowF16NEON, narrowBF16: narrowBF16NEON,
	},
	forwardRoutines: forwardRoutines{
		scores: scoresNEON, maskScores: maskScoresNEON, expScores: expScoresNEON, finalizeLSE: finalizeLSENEON,
		addValues: addValuesNEON,
	},
	backwardRoutines: backwardRoutines{
		dots: dotsNEON, gradients: gradientsNEON, gradientsOf: gradientsOfNEON, addProduct: addProductNEON, addProductT: addProductTNEON,
		setPanel: copyRowsNEON, accumulateRows: addRowsNEON, dropoutMask: dropoutMaskNEON,
	},

	addSum: addSumNEON, scaleRows: scaleRowsNEON, scoreMod: scoreModNEON, maskBits: maskBitsNEON, fetch: fetchNEON, dropWeights: dropWeightsNEON,
}
