//go:build arm64 && !purego

package simd

// neonLanes has the routines of fwd_neon and bwd_neon: 16 query rows, or keys, in the lanes of four vectors.
var neonLanes = laneISA{
	lanes: 16, keys: 192, block: 4, convert: 8, looks: true,
	fwdPace: neonPace(fwdCycles), bwdPace: neonPace(bwdCycles),

	scores: scoresNEON, maskScores: maskScoresNEON, weights: weightsNEON, totals: totalsNEON,
	addValues: addValuesNEON, addValuesMasked: addValuesMaskedNEON, addSum: addSumNEON, transpose: transposeNEON,
	dots: dotsNEON, gradients: gradientsNEON,
	addProduct: addProductNEON, addProductT: addProductTNEON,
	widenF16: widenF16NEON, widenBF16: widenBF16NEON, narrowF16: narrowF16NEON, narrowBF16: narrowBF16NEON,
	setPanel: copyRowsNEON, addPanelTo: addRowsNEON,

	adjust: adjustNEON, maskBits: maskBitsNEON, fetch: fetchNEON, dropWeights: dropWeightsNEON, keepKeys: keepKeysNEON, gradientsOf: gradientsOfNEON,
}
